"""The one door to the statistics of measuring: estimates, and whether a variant is shown to be as good as the baseline.

Every interval is two-sided at `level`. Randomness comes from `seed` alone, so that equal input gives equal output.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Literal

from hasten.measure.intervals import (
    Interval,
    as_series,
    improvement,
    is_noisy,
    mean_interval,
    percentile_interval,
    ratio_interval,
    signed_rank_interval,
    steady,
)

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from hasten.measure.intervals import Floats

__all__ = [
    "Interval",
    "Verdict",
    "bootstrap_score",
    "improvement",
    "is_noisy",
    "mean_interval",
    "non_inferior",
    "paired_bootstrap",
    "pareto",
    "percentile_interval",
    "ratio_interval",
    "samples_needed",
    "signed_rank_interval",
    "steady",
]

Verdict = Literal["non-inferior", "inferior", "undecided"]


def paired_bootstrap(
    baseline_scores: ArrayLike,
    variant_scores: ArrayLike,
    *,
    higher_is_better: bool = True,
    relative: bool = False,
    seed: int = 0,
    resamples: int = 2000,
    level: float = 0.95,
) -> Interval:
    """How much worse the variant's mean score is than the baseline's on the same samples (positive is worse).

    With `relative` the drop is a fraction of the baseline's mean. Expanded percentile bootstrap over samples
    (Hesterberg, What Teachers Should Know About the Bootstrap, 2015, section 5.2). Right-or-wrong scores (two values
    only) get Tango's score interval for paired proportions instead (Statistics in Medicine 17, 1998): a bootstrap of
    samples that all agree would claim certainty, with three samples as with three thousand.
    """
    import numpy as np

    a, b = as_series(baseline_scores), as_series(variant_scores)
    if len(a) != len(b):
        raise ValueError(f"{len(a)} baseline scores and {len(b)} variant scores are not pairs")
    loss = a - b if higher_is_better else b - a
    n = len(loss)
    levels = np.unique(np.concatenate([a, b]))
    baseline = abs(float(a.mean()))
    if relative and baseline == 0:
        return Interval(math.nan, -math.inf, math.inf)
    if len(levels) <= 2 and set(levels.tolist()) <= {0.0, 1.0}:
        interval = _tango(int((loss > 0).sum()), int((loss < 0).sum()), n, level)
        return interval.scaled(1 / baseline) if relative else interval
    if n < 2:
        return Interval(float(loss[0]) / (baseline if relative else 1), -math.inf, math.inf)
    random = np.random.default_rng(seed)
    drops = []
    rows = max(1, 2_000_000 // n)  # 16 MB of indices at a time
    for start in range(0, resamples, rows):
        index = random.integers(0, n, (min(rows, resamples - start), n))
        mean = loss[index].mean(axis=1)
        drops.append(mean / np.abs(a[index].mean(axis=1)) if relative else mean)
    value = float(loss.mean()) / (baseline if relative else 1)
    return _expanded(np.concatenate(drops), value, n, level)


def bootstrap_score(
    score: Callable[[Any, Any], float],
    outputs_a: Any,
    outputs_b: Any,
    labels: Any,
    *,
    higher_is_better: bool = True,
    relative: bool = False,
    seed: int = 0,
    resamples: int = 1000,
    level: float = 0.95,
) -> Interval:
    """How much worse `score` finds outputs `b` than outputs `a` on the same samples (positive is worse).

    For scores that are no mean over samples, such as f1, AUC or a correlation: `score(outputs, labels)` is taken
    anew on every resample. A resample on which it fails or is not finite (AUC with one class) is left out, and where
    half of them are, nothing is claimed. Method and `relative` as in `paired_bootstrap`. Where no resample shows any
    difference, the interval is what may still be unseen in n samples (Wilson's bound for no event in n), in units of
    how far one sample moves the score.
    """
    import numpy as np

    n = len(outputs_a)
    if n == 0 or len(outputs_b) != n or (labels is not None and len(labels) != n):
        raise ValueError("outputs and labels do not belong to the same samples")

    def scores(outputs: Any, index: Any) -> float:
        return float(score(_take(outputs, index), None if labels is None else _take(labels, index)))

    def drop(index: Any) -> float:
        a, b = scores(outputs_a, index), scores(outputs_b, index)
        loss = a - b if higher_is_better else b - a
        return loss if not relative else loss / abs(a) if a else math.nan

    everything = np.arange(n)
    value = drop(everything)
    random = np.random.default_rng(seed)
    drops = np.array([_or_nan(drop, random.integers(0, n, n)) for _ in range(resamples)])
    drops = drops[np.isfinite(drops)]
    if n < 2 or len(drops) * 2 < resamples:
        return Interval(value, -math.inf, math.inf)
    if np.ptp(drops) > 0:
        return _expanded(drops, value, n, level)
    whole = scores(outputs_a, everything)
    reach = max(
        [abs(whole), *(_influence(scores, each, random.permutation(n)[:200]) for each in (outputs_a, outputs_b))]
    )
    half = _nothing_seen(n, level) * (reach / whole if relative and whole else reach)
    return Interval(value, value - half, value + half)


def non_inferior(drop_ci: tuple[float, float] | None, allowed: float) -> Verdict:
    """Whether a drop is shown to be within `allowed`, shown to exceed it, or neither.

    The confidence-interval test of non-inferiority (CONSORT extension, Piaggio et al., JAMA 308, 2012).
    """
    if drop_ci is None or any(math.isnan(end) for end in drop_ci):
        return "undecided"
    if drop_ci[1] <= allowed:
        return "non-inferior"
    return "inferior" if drop_ci[0] > allowed else "undecided"


def samples_needed(
    drop: float,
    drop_ci: tuple[float, float] | None,
    allowed: float,
    samples: int,
    changed: int | None = None,
    level: float = 0.95,
) -> int | None:
    """About how many samples would decide, were the drop to stay as it is; None where no number can be named.

    An interval narrows with the square root of the samples, or, while none has changed its score (`changed` 0), with
    the samples themselves: `_nothing_seen` solved for n. `level` is that of `drop_ci`.
    """
    if drop_ci is None or not all(math.isfinite(x) for x in (drop, *drop_ci)):
        return None
    if non_inferior(drop_ci, allowed) != "undecided":
        return samples
    margin = abs(allowed - drop)
    half = drop_ci[1] - drop if drop < allowed else drop - drop_ci[0]
    if margin == 0 or half <= 0:
        return None
    if changed == 0:
        z2 = NormalDist().inv_cdf(0.5 + level / 2) ** 2
        return max(samples + 1, math.ceil((samples + z2) * half / margin - z2))
    return max(samples + 1, math.ceil(samples * (half / margin) ** 2))


def pareto(points: Sequence[Sequence[float]], higher_is_better: Sequence[bool]) -> tuple[int, ...]:
    """The indices of the points that no other point dominates (as good everywhere, better somewhere).

    One direction for each figure of a point. Points that are equal all stay. A NaN is worse than any number: a figure
    that was not taken wins nothing.
    """

    def losses(point: Sequence[float]) -> tuple[float, ...]:
        signed = [-x if higher else x for x, higher in zip(point, higher_is_better, strict=True)]
        return tuple(math.inf if math.isnan(x) else x for x in signed)

    table = [losses(point) for point in points]
    return tuple(
        index
        for index, point in enumerate(table)
        if not any(other != point and all(o <= p for o, p in zip(other, point, strict=True)) for other in table)
    )


def _take(values: Any, index: Any) -> Any:
    return values[index] if hasattr(values, "ndim") else [values[i] for i in index]


def _or_nan(function: Callable[[Any], float], index: Any) -> float:
    try:
        return function(index)
    except Exception:  # a user's metric may refuse a resample in any way it likes
        return math.nan


def _influence(scores: Callable[[Any, Any], float], outputs: Any, left_out: Any) -> float:
    """How far one sample moves the score, times their number: the spread of the score with one of them left out."""
    import numpy as np

    everything = np.arange(len(outputs))
    moved = np.array([_or_nan(lambda i: scores(outputs, i), np.delete(everything, i)) for i in left_out])
    moved = moved[np.isfinite(moved)]
    return len(everything) * float(np.ptp(moved)) if len(moved) else 0.0


def _expanded(drops: Floats, value: float, n: int, level: float) -> Interval:
    import numpy as np
    from scipy.special import stdtrit

    tail = NormalDist().cdf(math.sqrt(n / (n - 1)) * float(stdtrit(n - 1, (1 - level) / 2)))
    low, high = np.quantile(drops, [tail, 1 - tail])
    return Interval(value, min(float(low), value), max(float(high), value))


def _nothing_seen(n: int, level: float) -> float:
    """Wilson's upper bound on the rate of something that did not happen in n samples (JASA 22, 1927)."""
    z2 = NormalDist().inv_cdf((1 + level) / 2) ** 2
    return z2 / (n + z2)


def _tango(lost: int, won: int, n: int, level: float) -> Interval:
    """The difference (lost - won) / n of paired proportions, by inverting the score test."""
    z = NormalDist().inv_cdf((1 + level) / 2)

    def distance(delta: float) -> float:
        linear = -lost - won + (2 * n - lost + won) * delta
        rate = (math.sqrt(max(linear**2 + 8 * n * won * delta * (1 - delta), 0.0)) - linear) / (4 * n)
        deviation = math.sqrt(max(n * (2 * rate + delta * (1 - delta)), 1e-300))
        return (lost - won - n * delta) / deviation

    def solve(target: float, low: float, high: float) -> float:
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if distance(middle) > target else (low, middle)
        return (low + high) / 2

    value = (lost - won) / n
    return Interval(value, solve(z, -1.0, value), solve(-z, value, 1.0))
