"""Response cache: an input that was seen before, or a similar one, is answered without running the model."""

from __future__ import annotations

from collections.abc import Iterable

from hasten.levers.base import Case, Prediction, Proposal, SettingsLever
from hasten.runner.alike import WIDTH

WORTH = 0.02
"""The least share of repeated samples for which hashing every input can pay."""
SHARES = (0.05, 0.15, 0.30, 0.60)
"""The distances that are tried are those within which so many samples lie of one before them."""
NEEDED = {"latency_ms.p50": 0.5, "latency_ms.p99": 0.99, "size_mb": 1.0, "peak_memory_mb": 1.0}
"""With a smaller share of hits these figures stay as they are."""
FARTHEST = 0.5
SIMILAR_ENTRIES = 1024
CHEAPER = 20
"""A search through all entries must take so many times fewer operations than the model."""


class Cache(SettingsLever):
    name = "cache"
    programs = frozenset({"single", "generate", "encoder_decoder"})

    def propose(self, case: Case) -> Iterable[Proposal]:
        if case.recipe.cache or case.workload.samples.kind == "synthetic":
            return
        rate = case.duplicates
        needed = NEEDED.get(case.goal.figure, WORTH)
        if rate >= needed:
            yield Proposal(
                case.recipe.edit("cache", kind="identity", entries=4096),
                Prediction(1 / max(0.05, 1 - rate), "share of samples that repeat an earlier one"),
                f"{rate:.0%} of the samples repeat an earlier one",
                self.name,
            )
        yield from self._similar(case)

    def _similar(self, case: Case) -> Iterable[Proposal]:
        """Distances found from the samples; whether the answers are good enough is for the metric to say."""
        if case.goal.max_drop.amount == 0 or not case.nearest:
            return
        search = 2 * SIMILAR_ENTRIES * WIDTH * max(1, len(case.workload.samples.inputs))
        model = sum(operator.flops for operator in case.operators)
        if case.operators and model < CHEAPER * search:
            return
        seen: set[float] = set()
        for share in reversed(SHARES):
            place = int(share * len(case.nearest))
            if place < 1:
                continue
            distance = float(f"{case.nearest[place - 1]:.3g}")
            if distance in seen or not 0 < distance <= FARTHEST:
                continue
            seen.add(distance)
            rate = min(0.95, case.duplicates + share * (1 - case.duplicates))
            if rate < NEEDED.get(case.goal.figure, WORTH):
                continue
            yield Proposal(
                case.recipe.edit("cache", kind="semantic", entries=SIMILAR_ENTRIES, distance=distance),
                Prediction(1 / (1 - rate), "share of samples that are as near to an earlier one"),
                f"{share:.0%} of the samples are within a distance of {distance:g} of an earlier one",
                self.name,
            )
