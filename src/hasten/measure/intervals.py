"""Estimates with their intervals from one series of numbers, and whether that series is steady or noisy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import TYPE_CHECKING

from hasten.measurement import Figure

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence interval; an end that the data cannot bound is infinite."""

    value: float
    low: float
    high: float

    @property
    def ci95(self) -> tuple[float, float] | None:
        """Both ends, or None where one of them is unbounded (JSON has no infinity)."""
        return (self.low, self.high) if math.isfinite(self.low) and math.isfinite(self.high) else None

    def scaled(self, factor: float) -> Interval:
        """The same estimate in another unit; `factor` is positive."""
        return Interval(self.value * factor, self.low * factor, self.high * factor)

    def figure(self, unit: str, source: str = "measured") -> Figure:
        return Figure(self.value, unit, source, self.ci95)


def mean_interval(values: ArrayLike, level: float = 0.95) -> Interval:
    """The mean of a series in the order it was taken, with Student's t interval.

    From 60 values on the interval is taken over 30 means of consecutive values, because neighbours resemble each
    other and would make it too narrow (method of batch means: Law, Simulation Modeling and Analysis, section 9.5.3).
    """
    import numpy as np

    x = as_series(values)
    value = float(x.mean())
    if len(x) >= 60:
        x = np.array([part.mean() for part in np.array_split(x, 30)])
    half = _t_half_width(x, level)
    return Interval(value, value - half, value + half)


def percentile_interval(values: ArrayLike, q: float, level: float = 0.95) -> Interval:
    """The `q` quantile (0 < q < 1; nearest rank, as MLPerf counts) between two order statistics.

    Distribution-free: the number of values under the true quantile is Binomial(n, q) (David and Nagaraja, Order
    Statistics, section 7.1). Where n is too small to bound a side, that side is infinite: 100 values say nothing of
    how high p99.9 may lie.
    """
    import numpy as np
    from scipy.special import bdtr

    if not 0 < q < 1:
        raise ValueError(f"a quantile lies between 0 and 1, not {q}")
    x = np.sort(as_series(values))
    n = len(x)
    below = bdtr(np.arange(-1, n + 1), n, q)  # below[k] = P(fewer than k values lie under the quantile)
    tail = (1 - level) / 2
    low = int(np.searchsorted(below, tail, side="right")) - 1  # the largest rank with P(X < rank) <= tail
    high = int(np.searchsorted(below, 1 - tail))  # the smallest rank with P(X < rank) >= 1 - tail
    value = float(x[max(math.ceil(q * n - 1e-9), 1) - 1])
    return Interval(value, float(x[low - 1]) if low >= 1 else -math.inf, float(x[high - 1]) if high <= n else math.inf)


def signed_rank_interval(values: ArrayLike, level: float = 0.95) -> Interval:
    """The centre of values that lie symmetrically about it, resistant to outliers.

    Hodges and Lehmann's estimate, the median of all pairwise means, with the interval that inverts Wilcoxon's signed
    rank test (Hollander, Wolfe and Chicken, Nonparametric Statistical Methods, sections 3.2 and 3.3). Under six
    values, where that test cannot reach 95%, Student's t interval stands in; of two or three values it covers 89% in
    the worst simulation.
    """
    import numpy as np

    x = as_series(values)
    n = len(x)
    i, j = np.triu_indices(n)
    means = np.sort((x[i] + x[j]) / 2)
    value = float(np.median(means))
    rank = _signed_rank(n, (1 - level) / 2)
    if rank == 0:
        half = _t_half_width(x, level)
        centre = float(x.mean()) if n < 6 else value
        return Interval(centre, centre - half, centre + half)
    return Interval(value, float(means[rank - 1]), float(means[-rank]))


def ratio_interval(pairs: Sequence[tuple[float, float]], higher_is_better: bool = False, level: float = 0.95) -> Figure:
    """How many times better the second of each pair is than the first (above 1 is better), from paired rounds."""
    return improvement([v / b if higher_is_better else b / v for b, v in pairs], level)


def improvement(ratios: Sequence[float], level: float = 0.95) -> Figure:
    """The typical ratio of paired rounds with its interval; None for the interval of a single round.

    `signed_rank_interval` of the log ratios. Its one assumption, that a round is as likely to favour one side as the
    other, holds by construction where the order within each round is drawn at random, whatever the machine does:
    drift, periodic speed changes and bursts fall on both sides alike. Chosen by simulation (tests/lab/conftest.py, 6 to
    60 rounds): it covers 95% to 96%, and from 20 rounds on is little more than half as wide as the t interval, which
    bursts widen. A fixed ABBA order fails there: a load with a period of four runs falls on one side each time, and
    coverage sinks below 40%.
    """
    if not all(0 < ratio < math.inf for ratio in ratios):
        raise ValueError("the ratio of two rounds must be positive and finite")
    interval = signed_rank_interval([math.log(ratio) for ratio in ratios], level)
    low, high = (math.exp(min(end, 700.0)) for end in (interval.low, interval.high))
    ci95 = (low, high) if len(ratios) > 1 else None
    return Figure(math.exp(interval.value), "x", "measured", ci95)


def is_noisy(rounds: ArrayLike, resolution: float = 0.05) -> bool:
    """Whether the noise of these rounds of one thing would hide a difference of `resolution`.

    Each round is compared with the next as if they were two contestants, so a slow drift, which alternating rounds
    cancel, does not count as noise. True where the 95% interval of their ratio is wider than plus or minus
    `resolution`, and where there are too few rounds to say.
    """
    import numpy as np

    x = as_series(rounds)
    if len(x) < 3 or np.any(x <= 0):
        return True
    if len(x) > 200:  # long series: means of consecutive values, which also keeps the pairwise means few
        x = np.array([part.mean() for part in np.array_split(x, 200)])
    interval = signed_rank_interval(np.diff(np.log(x)))
    return (interval.high - interval.low) / 2 > math.log1p(resolution)


def steady(latencies: ArrayLike) -> int | None:
    """The index from which a series has left its warm-up, or None where it has not settled yet.

    MSER-5: the cut that leaves the least standard error of the mean, over means of five (White, Simulation 69, 1997;
    five where there are 50 values or more, else one). Cuts stop at the middle, and one that lies there means that the
    series was still moving. Values are first capped at three interquartile ranges above the second half, so that a
    burst near the end does not pass for a change of level.
    """
    import numpy as np

    x = as_series(latencies)
    if len(x) < 6:
        return None
    low, high = np.percentile(x[len(x) // 2 :], [25, 75])
    x = np.minimum(x, high + 3 * (high - low) + 1e-12 * abs(high))
    size = 5 if len(x) >= 50 else 1
    means = x[: len(x) // size * size].reshape(-1, size).mean(axis=1)
    last = len(means) // 2
    error = [float(means[cut:].var()) / (len(means) - cut) for cut in range(last + 1)]
    best = error.index(min(error))
    return best * size if best < last else None


@cache
def _signed_rank(n: int, tail: float) -> int:
    """How many pairwise means to leave out on each side; 0 where even the full range does not reach the level."""
    import numpy as np

    if n > 100:
        mean, deviation = n * (n + 1) / 4, math.sqrt(n * (n + 1) * (2 * n + 1) / 24)
        return max(0, math.floor(mean + NormalDist().inv_cdf(tail) * deviation))
    chance = np.zeros(n * (n + 1) // 2 + 1)
    chance[0] = 1.0
    for rank in range(1, n + 1):
        with_rank = chance.copy()
        with_rank[rank:] += chance[:-rank]
        chance = with_rank / 2
    return int(np.searchsorted(np.cumsum(chance), tail, side="right"))


def _t_half_width(x: Floats, level: float) -> float:
    from scipy.special import stdtrit

    if len(x) < 2:
        return math.inf
    return float(stdtrit(len(x) - 1, (1 + level) / 2) * x.std(ddof=1) / math.sqrt(len(x)))


def as_series(values: ArrayLike) -> Floats:
    import numpy as np

    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or len(x) == 0:
        raise ValueError("statistics need a non-empty one-dimensional series")
    if not np.all(np.isfinite(x)):
        raise ValueError("statistics need finite values")
    return x
