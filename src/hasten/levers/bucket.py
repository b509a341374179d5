"""Length sorting and buckets: samples of like length share a batch, so that less padding is computed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hasten.levers.base import Case, Prediction, Proposal, SettingsLever
from hasten.recipe import Recipe
from hasten.runner.plan import RunnerSettings, plan

GRAIN = 8
BUCKETS = 8
SMALL = 8
FIRST_TOKENS = (512, 2048)
MOST_TOKENS = 16384
"""Elements along the variable axis in one batch: small ones stay in a core's cache, large ones feed matrix units."""
STATIC_GAIN = {"openvino": 1.15}
"""What static shapes alone bring on encoders, cautiously (1.8 was measured at 32x128 on OpenVINO with AMX)."""


def edges(lengths: Sequence[int], count: int, grain: int = GRAIN) -> tuple[int, ...]:
    """At most `count` bucket sizes, multiples of `grain`, that minimise the padded total for these lengths.

    Exact, by dynamic programming over the distinct rounded lengths: cost[k][j] is the least padded total of all samples
    up to the j-th distinct length with k buckets, the last one ending there.

    >>> edges([5, 6, 30, 31], 2)
    (8, 32)
    """
    rounded = sorted(-(-length // grain) * grain for length in lengths)
    sizes = sorted(set(rounded))
    below = [0]
    for size in sizes:
        below.append(sum(1 for length in rounded if length <= size))
    infinite = float("inf")
    cost = [[infinite] * (len(sizes) + 1) for _ in range(count + 1)]
    back = [[0] * (len(sizes) + 1) for _ in range(count + 1)]
    cost[0][0] = 0
    for k in range(1, count + 1):
        for j in range(1, len(sizes) + 1):
            for i in range(j):
                total = cost[k - 1][i] + (below[j] - below[i]) * sizes[j - 1]
                if total < cost[k][j]:
                    cost[k][j], back[k][j] = total, i
    k = min(range(1, count + 1), key=lambda k: cost[k][-1])
    chosen: list[int] = []
    j = len(sizes)
    while j > 0:
        chosen.append(sizes[j - 1])
        j, k = back[k][j], k - 1
    return tuple(reversed(chosen))


def work(lengths: Sequence[int], recipe: Recipe, can_pad: bool = True) -> int:
    """The elements along the variable axis that this runner computes for these lengths, padding and fill included."""
    batches = plan(lengths, len(lengths), RunnerSettings.from_recipe(recipe.runner), can_pad)
    return sum((batch.length or max(lengths[i] for i in batch.indices)) * batch.size for batch in batches)


class Bucket(SettingsLever):
    name = "bucket"

    def propose(self, case: Case) -> Iterable[Proposal]:
        padding = case.workload.padding
        if not case.lengths or padding is None or not padding.verified or case.recipe.runner.get("form") == "pack":
            return
        choices = self._single(case) if case.workload.scenario == "single-stream" else self._offline(case)
        runtime = str(case.recipe.runtime.get("name"))
        now = work(case.lengths, case.recipe)
        was_static = bool(case.recipe.runner.get("static"))
        found = []
        for recipe, why in choices:
            if recipe.runner == case.recipe.runner:
                continue
            factor = now / work(case.lengths, recipe)
            if recipe.runner.get("static") and not was_static:
                factor *= STATIC_GAIN.get(runtime, 1.0)
            found.append(Proposal(recipe, Prediction(factor, "padding counted by the batch plan"), why, self.name))
        yield from sorted(found, key=lambda proposal: -proposal.gain.factor)

    def _offline(self, case: Case) -> Iterable[tuple[Recipe, str]]:
        """Sorting, or buckets of some size; from buckets, their neighbours: twice or half the rows, dynamic shapes."""
        recipe, runner = case.recipe, case.recipe.runner
        if runner.get("form") != "bucket":
            yield recipe.edit("runner", sort=True), "sort by length before batching"
            yield (
                recipe.edit("runner", sort=True, batch=SMALL),
                "sort by length into small batches, which stay in cache",
            )
            for tokens in FIRST_TOKENS:
                yield self._bucketed(case, BUCKETS, tokens, True)
            return
        static, tokens, count = bool(runner.get("static")), int(runner["batch_tokens"]), len(runner["buckets"])
        for other in (tokens // 2, tokens * 2):
            if MOST_TOKENS >= other >= max(runner["buckets"]) // 2:
                yield self._bucketed(case, count, other, static)
        yield self._bucketed(case, count, tokens, not static)
        yield self._bucketed(case, count * 2, tokens, static)

    def _bucketed(self, case: Case, count: int, tokens: int, static: bool) -> tuple[Recipe, str]:
        buckets = list(edges(case.lengths, count))
        recipe = case.recipe.edit(
            "runner",
            form="bucket",
            buckets=buckets,
            static=(static and case.recipe.runtime.get("name") == "openvino") or None,
            batch_tokens=max(tokens, 1),
            sort=None,
            batch=None,
        )
        shapes = "static" if recipe.runner.get("static") else "dynamic"
        return recipe, f"{len(buckets)} length buckets with {shapes} shapes of about {tokens} elements a batch"

    def _single(self, case: Case) -> Iterable[tuple[Recipe, str]]:
        if case.recipe.runtime.get("name") != "openvino":
            return
        for count in (4, 8):
            buckets = list(edges(case.lengths, count))
            edited = case.recipe.edit("runner", form="bucket", buckets=buckets, static=True, batch=1)
            yield edited, f"{len(buckets)} static shapes, each sample padded to the next"
