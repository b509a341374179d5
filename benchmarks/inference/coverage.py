"""Compares the demo model with itself, again and again: how often the interval contains 1."""

from __future__ import annotations

import math
from collections.abc import Mapping

from benchmarks.common import Group, Run, Taken, at_least
from hasten import api
from hasten.demo import vision

COMPARISONS = 20


def coverage(run: Run) -> Mapping[str, Taken]:
    count = run.pick(COMPARISONS, 3)
    model = vision.demo().model
    hits, ratios = 0, []
    for number in range(count):
        found = api.compare(model, model, "hasten.demo.vision:samples", budget=run.pick(8.0, 3.0), seed=number)
        low, high = found.ratio.ci95 or (-math.inf, math.inf)
        hits += low <= 1.0 <= high
        ratios.append(found.ratio.value)
        run.say(f"  {number + 1}: {found.ratio.value:.4f} [{low:.4f}, {high:.4f}]")
    how = (
        f"{hits} of {count} comparisons of the demo model with itself had 1 in their 95% interval; "
        f"ratios from {min(ratios):.3f} to {max(ratios):.3f}"
    )
    return {"compare.self.coverage": Taken(hits / count, how, wilson(hits, count))}


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
