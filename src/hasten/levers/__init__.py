"""What can change: one file per technique, found through the entry-point group `hasten.levers`."""

from hasten.levers.base import Case, Lever, Need, Prediction, Proposal, all_levers, lever, programs_of

__all__ = ["Case", "Lever", "Need", "Prediction", "Proposal", "all_levers", "lever", "programs_of"]
