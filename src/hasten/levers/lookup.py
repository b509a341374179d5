"""Prompt lookup decoding: what stood in the text before is drafted, and one step of the model checks it all."""

from __future__ import annotations

from collections.abc import Iterable

from hasten.levers.base import Case, Prediction, Proposal, SettingsLever
from hasten.levers.prediction import SCHEDULES, runtime_of

WIDTHS = (4, 8)
PRIOR = Prediction(1.2, "prior: as many tokens at once as the text repeats itself")


class Lookup(SettingsLever):
    """The text stays that of greedy decoding: only what the model would have chosen itself is kept."""

    name = "lookup"
    programs = frozenset({"generate"})

    def refuse(self, case: Case) -> str | None:
        if case.recipe.runner.get("batch", 1) > 1:
            return "prompts that are decoded together accept drafts of different lengths"
        if runtime_of(case) in SCHEDULES:
            return f"{runtime_of(case)} is not fed token by token"
        return None

    def propose(self, case: Case) -> Iterable[Proposal]:
        if self.refuse(case):
            return
        for width in WIDTHS:
            if case.recipe.runner.get("lookup") != width:
                recipe = case.recipe.edit("runner", lookup=width)
                yield Proposal(recipe, PRIOR, f"drafts of {width} tokens that the text already holds", self.name)
