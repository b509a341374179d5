"""Response cache: an input that was seen before is answered without running the model."""

from __future__ import annotations

from collections.abc import Iterable

from hasten.levers.base import Case, Prediction, Proposal, SettingsLever

WORTH = 0.02
"""The least share of repeated samples for which hashing every input can pay."""


class Cache(SettingsLever):
    name = "cache"

    def propose(self, case: Case) -> Iterable[Proposal]:
        rate = case.duplicates
        if case.recipe.cache or rate < WORTH or case.workload.samples.kind == "synthetic":
            return
        recipe = case.recipe.edit("cache", kind="identity", entries=4096)
        yield Proposal(
            recipe,
            Prediction(1 / max(0.05, 1 - rate), "share of samples that repeat an earlier one"),
            f"{rate:.0%} of the samples repeat an earlier one",
            self.name,
        )
