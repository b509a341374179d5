"""Arithmetic on paper, with its data files: roofline, memory, price, energy, carbon."""
