"""What prompts begin with alike is read once: instructions before each question, a conversation's turns so far."""

from __future__ import annotations

from collections.abc import Iterable

from hasten.levers.base import Case, Prediction, Proposal, SettingsLever
from hasten.levers.prediction import SCHEDULES, runtime_of

WORTH = 0.1
"""The least share of a prompt that the one before it began with."""
READING = 0.5
"""How much of an answer's time goes to reading its prompt, as a first guess."""


class Prefix(SettingsLever):
    """The answers stay those of greedy decoding: see `runner.remembered`."""

    name = "prefix"
    programs = frozenset({"generate"})

    def propose(self, case: Case) -> Iterable[Proposal]:
        runner, share = case.recipe.runner, case.shared
        if runner.get("prefix") or runner.get("batch", 1) > 1 or share < WORTH or runtime_of(case) in SCHEDULES:
            return
        yield Proposal(
            case.recipe.edit("runner", prefix=True),
            Prediction(1 / (1 - READING * min(share, 0.95)), "prior: half of the time goes to reading prompts"),
            f"{share:.0%} of a prompt is how the one before it began, and is not read again",
            self.name,
        )
