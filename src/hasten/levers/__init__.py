"""What can change: one file per technique, found through the entry-point group `hasten.levers`."""

from hasten.levers.base import Case, Lever, Need, Prediction, Proposal, all_levers, lever

__all__ = ["Case", "Lever", "Need", "Prediction", "Proposal", "all_levers", "lever"]
