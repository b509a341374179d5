"""A strip: intervals on one horizontal axis, drawn in percent so that it fits any width without scaling its strokes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hasten.report.html import Markup, el


@dataclass(frozen=True)
class Mark:
    """A value with its interval; `kind` is a class of the style sheet."""

    value: float
    low: float
    high: float
    kind: str = ""


def strip(
    domain: tuple[float, float],
    marks: Sequence[Mark],
    rule: float | None = None,
    limit: float | None = None,
    bar: bool = False,
) -> Markup:
    """One row of marks.

    `rule` is a hairline at a reference (no change), `bar` draws a thin line from it to the value, and `limit` shades
    what lies beyond an allowed bound.
    """

    def at(value: float) -> str:
        low, high = domain
        share = (value - low) / (high - low) if high > low else 0.5
        return f"{100 * min(max(share, 0.0), 1.0):.2f}%"

    parts = []
    if limit is not None:
        beyond = 100 - float(at(limit)[:-1])
        parts.append(el("rect", x=at(limit), y=0, width=f"{beyond:.2f}%", height=18, class_="beyond"))
        parts.append(el("line", x1=at(limit), x2=at(limit), y1=0, y2=18, class_="limit"))
    if rule is not None:
        parts.append(el("line", x1=at(rule), x2=at(rule), y1=0, y2=18, class_="rule"))
    for mark in marks:
        if mark.low > domain[1]:  # out of sight: an arrow head at the edge says so
            parts.append(el("line", x1="96%", x2="100%", y1=5, y2=9, class_=f"arrow {mark.kind}".strip()))
            parts.append(el("line", x1="96%", x2="100%", y1=13, y2=9, class_=f"arrow {mark.kind}".strip()))
            continue
        kind = mark.kind or None
        if bar and rule is not None:
            parts.append(el("line", x1=at(rule), x2=at(mark.value), y1=9, y2=9, class_=f"bar {mark.kind}".strip()))
        parts.append(el("line", x1=at(mark.low), x2=at(mark.high), y1=9, y2=9, class_=f"interval {mark.kind}".strip()))
        parts.append(el("circle", cx=at(mark.value), cy=9, r=3.5, class_=kind))
    return el("svg", parts, class_="strip", height=18, aria_hidden="true")
