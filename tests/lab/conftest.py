"""A seeded model of a machine's moods: what multiplies the time of consecutive runs, whoever runs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

Noise = Callable[..., np.ndarray]


def machine_noise(runs: int, comparisons: int, random: np.random.Generator, period: float | None = None) -> np.ndarray:
    """Log factors, shape (comparisons, runs): jitter, a random walk, a periodic change of speed, and bursts.

    Each comparison draws its own strengths: jitter of 0.3% to 5%, a walk of up to 1% a run, a wave (smooth or square)
    of up to 10% with a period of 2.5 to 60 runs (or of `period`), bursts that start at up to 15% of the runs, last 2.5
    runs on average and slow them by 40% on average.
    """
    shape = (comparisons, runs)

    def strength(low: float, high: float) -> np.ndarray:
        return random.uniform(low, high, (comparisons, 1))

    jitter = random.normal(size=shape) * strength(0.003, 0.05)
    walk = np.cumsum(random.normal(size=shape) * strength(0, 0.01), axis=1)
    length = np.exp(strength(np.log(2.5), np.log(60))) if period is None else period
    wave = np.sin(2 * np.pi * (np.arange(runs) / length + strength(0, 1)))
    wave = np.where(strength(0, 1) < 0.5, np.sign(wave), wave) * strength(0, 0.1)
    starts = random.random(shape) < strength(0, 0.15)
    sizes, lengths = np.log1p(random.exponential(0.4, shape)), random.geometric(0.4, shape)
    bursts = np.zeros(shape)
    size, left = np.zeros(comparisons), np.zeros(comparisons, int)
    for run in range(runs):
        size = np.where(starts[:, run], sizes[:, run], size)
        left = np.where(starts[:, run], lengths[:, run], left)
        bursts[:, run] = np.where(left > 0, size, 0)
        left -= 1
    return jitter + walk + wave + bursts


@pytest.fixture
def noise() -> Noise:
    """`machine_noise`, for any test of the lab."""
    return machine_noise
