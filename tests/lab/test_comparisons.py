from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hasten.measure.statistics import ratio_interval


def compared_with_itself(noise: Any, rounds: int, comparisons: int, seed: int, period: float | None) -> list[Any]:
    """Pairs of rounds of one thing on a moody machine, in the order that `race` runs them: drawn for each round."""
    random = np.random.default_rng(seed)
    moods = np.exp(noise(2 * rounds, comparisons, random, period)).reshape(comparisons, rounds, 2)
    return list(random.permuted(moods, axis=2))


@pytest.mark.parametrize("period", [None, 2.0, 4.0])
@pytest.mark.parametrize("rounds", [5, 6, 7, 12, 25, 60])
def test_a_comparison_with_itself_contains_1_in_93_of_100(noise: Any, rounds: int, period: float | None) -> None:
    held = 0
    for pairs in compared_with_itself(noise, rounds, 1000, seed=rounds, period=period):
        low, high = ratio_interval(pairs).ci95 or (0, 0)
        held += low <= 1 <= high
    assert held >= 930


def test_a_difference_of_10_per_cent_is_seen_through_the_noise(noise: Any) -> None:
    seen = 0
    for pairs in compared_with_itself(noise, 60, 200, seed=1, period=None):
        ratio = ratio_interval([(1.1 * baseline, variant) for baseline, variant in pairs])
        seen += ratio.ci95 is not None and ratio.ci95[0] > 1
    assert seen > 180
