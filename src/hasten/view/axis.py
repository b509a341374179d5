"""Logarithmic axes with sane ticks, and the way from data to pixels that label placing needs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class LogAxis:
    """From `low` to `high` over `pixels`; `flip` for a vertical axis, whose pixels grow downwards."""

    low: float
    high: float
    pixels: float
    flip: bool = False

    @classmethod
    def around(cls, values: Sequence[float], pixels: float, *, flip: bool = False, margin: float = 0.06) -> LogAxis:
        """Room for every value with a margin on both sides (a share of the whole length)."""
        logs = [math.log(v) for v in values if v > 0 and math.isfinite(v)] or [0.0]
        low, high = min(logs), max(logs)
        if high - low < math.log(4):
            middle = (low + high) / 2
            low, high = middle - math.log(2), middle + math.log(2)
        gap = (high - low) * margin / (1 - 2 * margin)
        return cls(math.exp(low - gap), math.exp(high + gap), pixels, flip)

    def at(self, value: float) -> float:
        """The pixel of `value`."""
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.pixels * (1 - share if self.flip else share)

    def value(self, pixel: float) -> float:
        """The value at `pixel`."""
        share = pixel / self.pixels
        return math.exp(math.log(self.low) + math.log(self.high / self.low) * (1 - share if self.flip else share))

    def ticks(self, most: int = 8) -> list[float]:
        """Powers of ten; with 2 and 5 between them, or with every other left out, so that a few of them show."""
        for steps in ((1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9), (1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
            found = self._powers(steps)
            if len(found) <= most:
                return found
        tens = self._powers((1,))
        return tens[:: math.ceil(len(tens) / most)]

    def _powers(self, steps: Sequence[float]) -> list[float]:
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        values = (step * 10.0**power for power in range(first, last + 1) for step in steps)
        return [float(f"{value:.6g}") for value in values if self.low <= value <= self.high]
