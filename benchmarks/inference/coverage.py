"""Compares the demo model with itself, again and again: how often the interval contains 1."""

from __future__ import annotations

import math
from collections.abc import Mapping

from benchmarks.common import Group, Run, Taken, at_least
from hasten import api
from hasten.demo import vision
from hasten.errors import Failed

COMPARISONS = 20


def coverage(run: Run) -> Mapping[str, Taken]:
    count = run.pick(COMPARISONS, 3)
    model = vision.demo().model
    intervals, ratios = [], []
    for number in range(count):
        found = api.compare(model, model, "hasten.demo.vision:samples", budget=run.pick(10.0, 8.0), seed=number)
        ratios.append(found.ratio.value)
        run.say(f"  {number + 1}: {found.ratio.value:.4f} {found.ratio.ci95}, {len(found.rounds)} rounds")
        if found.ratio.ci95 is not None and math.isfinite(found.ratio.ci95[1]):
            intervals.append(found.ratio.ci95)
    if not intervals:
        raise Failed(f"no comparison of {count} had rounds enough for an interval", "use a quiet machine")
    hits = sum(low <= 1.0 <= high for low, high in intervals)
    without = "" if len(intervals) == count else f"; {count - len(intervals)} had too few rounds for an interval"
    how = (
        f"{hits} of {len(intervals)} comparisons of the demo model with itself had 1 in their 95% interval{without}; "
        f"ratios from {min(ratios):.3f} to {max(ratios):.3f}"
    )
    return {"compare.self.coverage": Taken(hits / len(intervals), how, wilson(hits, len(intervals)))}


def wilson(hits: int, count: int) -> tuple[float, float]:
    """The 95% interval of a share (Wilson, JASA 22, 1927).

    >>> tuple(round(end, 3) for end in wilson(19, 20))
    (0.764, 0.991)
    """
    z = 1.959963984540054
    share, z2n = hits / count, z * z / count
    middle = (share + z2n / 2) / (1 + z2n)
    half = z * math.sqrt(share * (1 - share) / count + z2n / (4 * count)) / (1 + z2n)
    return max(0.0, middle - half), min(1.0, middle + half)


GROUPS = [Group({"compare.self.coverage": "share"}, coverage, {"compare.self.coverage": at_least(0.9)})]
