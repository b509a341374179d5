"""Evaluates trials fairly: rounds side by side in workers, what they show, and the store that keeps it."""
