"""A chart drawn in percent of its own width, so that its text and strokes keep their size on any screen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hasten.report.html import Child, Markup, el
from hasten.report.words import number


@dataclass(frozen=True)
class Scale:
    """Maps values to a share of an axis. Values outside are held at its ends."""

    low: float
    high: float
    log: bool = False

    def share(self, value: float) -> float:
        if self.log:
            value = max(value, self.low)
            low, high, value = math.log(self.low), math.log(self.high), math.log(value)
        else:
            low, high = self.low, self.high
        return min(max((value - low) / (high - low), 0.0), 1.0) if high > low else 0.5

    def percent(self, value: float) -> str:
        return f"{100 * self.share(value):.2f}%"

    def ticks(self, about: int = 5) -> list[float]:
        """Round values within the scale: 1, 2 or 5 times a power of ten; for a long log scale only powers of ten."""
        if self.log:
            return self._log_ticks(about)
        raw = (self.high - self.low) / max(about, 1)
        if raw <= 0:
            return []
        power = 10 ** math.floor(math.log10(raw))
        step = next(m * power for m in (1, 2, 5, 10) if m * power >= raw * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [index * step for index in range(first, last + 1)]

    def _log_ticks(self, about: int) -> list[float]:
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        for multiples in ((1, 2, 5), (1, 3), (1,)):
            found = [
                m * 10.0**power
                for power in range(first, last + 1)
                for m in multiples
                if self.low * 0.999 <= m * 10.0**power <= self.high * 1.001
            ]
            if len(found) <= about + 1:
                return found
        every = max(1, math.ceil((last - first) / about))
        return [10.0**p for p in range(first, last + 1, every) if self.low * 0.999 <= 10.0**p <= self.high * 1.001]


def tick_text(value: float) -> str:
    text = number(value, 2) if value else "0"
    return text.rstrip("0").rstrip(".") if "." in text else text


@dataclass(frozen=True)
class Chart:
    """A frame of two scales. `marks` and the like are drawn in it with `x(value)` and `y(value)`."""

    across: Scale
    up: Scale
    height: int = 300

    def x(self, value: float) -> str:
        return self.across.percent(value)

    def y(self, value: float) -> float:
        return round((1 - self.up.share(value)) * self.height, 1)

    def segment(self, start: tuple[float, float], end: tuple[float, float], kind: str) -> Markup:
        """A straight line between two points given in values."""
        return el("line", x1=self.x(start[0]), x2=self.x(end[0]), y1=self.y(start[1]), y2=self.y(end[1]), class_=kind)

    def frame(self) -> list[Markup]:
        parts = []
        for value in self.up.ticks(5):
            at = self.y(value)
            parts.append(el("line", x1=0, x2="100%", y1=at, y2=at, class_="grid"))
            parts.append(el("text", tick_text(value), x=-8, y=at + 4, text_anchor="end", class_="tick"))
        parts.append(el("line", x1=0, x2="100%", y1=self.height, y2=self.height, class_="base"))
        for value in self.across.ticks(5):
            at_x = self.x(value)
            parts.append(el("line", x1=at_x, x2=at_x, y1=self.height, y2=self.height + 4, class_="base"))
            parts.append(el("text", tick_text(value), x=at_x, y=self.height + 18, text_anchor="middle", class_="tick"))
        return parts

    def render(self, marks: Child, *, x_title: str, y_title: str, label: str, legend: Child = None) -> Markup:
        """`label` says in words what the picture shows, for readers who cannot see it."""
        svg = el("svg", self.frame(), marks, height=self.height, role="img", aria_label=label)
        return el(
            "figure",
            el("figcaption", el("span", y_title, class_="y-title"), legend),
            el("div", svg, class_="plot"),
            el("p", x_title, class_="x-title"),
            class_="chart",
        )


def legend(entries: Sequence[tuple[str, str]]) -> Markup:
    """`entries` are (class, words)."""
    return el("span", [el("span", el("i", class_=kind), words) for kind, words in entries], class_="legend")
