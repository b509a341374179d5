"""Latency distributions side by side: the shape of each, its median and its tail."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hasten.view import theme
from hasten.view.axis import LogAxis
from hasten.view.labels import text_width
from hasten.view.number import microseconds

if TYPE_CHECKING:
    from altair import LayerChart

PERCENTILES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999))
BINS = 160
ROW = 64
"""Pixels of one distribution."""


def latency_svg(
    latencies_ms: Mapping[str, Sequence[float]],
    *,
    width: int = 760,
    style: theme.Theme = theme.ADAPTIVE,
    key: str = "latency",
) -> str:
    """Draw the latencies of each variant, in the order given."""
    label = f"Latency distributions of {', '.join(latencies_ms)}."
    return theme.svg(latency(latencies_ms, width=width), theme=style, label=label, key=key)


def latency(latencies_ms: Mapping[str, Sequence[float]], *, width: int = 760) -> LayerChart:
    """One ridge for each variant on a common logarithmic axis, with ticks at the percentiles that samples support."""
    alt = theme.altair()
    known = {name: sorted(v for v in values if v > 0) for name, values in latencies_ms.items()}
    known = {name: values for name, values in known.items() if values}
    everything = [edge for values in known.values() for edge in (values[0], values[-1])]
    across = LogAxis.around(everything, width, margin=0.05)
    height = ROW * max(1, len(known)) + 8
    x = alt.X(
        "x:Q",
        scale=alt.Scale(type="log", domain=[across.low, across.high], nice=False),
        axis=alt.Axis(values=across.ticks(8 if width > 500 else 5), format=",~r", title="latency (ms)"),
    )
    y = alt.Y("y:Q", scale=alt.Scale(domain=[0, height], nice=False), axis=None)
    ridges, ticks, names = [], [], []
    for number, (name, values) in enumerate(known.items()):
        base = height - ROW * (number + 1)
        colour = theme.SERIES[number % len(theme.SERIES)]
        shape = density(values, across)
        ridges += [{"x": at, "y": base, "top": base + share * (ROW - 24), "name": name} for at, share in shape]
        for title, value in percentiles(values):
            ticks.append({"x": value, "y": base, "top": base + 9, "name": name, "words": _words(name, title, value)})
        names.append({"y": base + ROW - 14, "text": name, "colour": colour})
    domain = list(known)
    colours = alt.Color(
        "name:N",
        scale=alt.Scale(domain=domain, range=[theme.SERIES[i % len(theme.SERIES)] for i in range(len(domain))]),
        legend=None,
    )
    area = (
        alt.Chart(alt.Data(values=ridges))
        .mark_area(opacity=0.3, line={"strokeWidth": 1.4, "opacity": 0.9}, interpolate="monotone")
        .encode(x=x, y=y, y2="top:Q", color=colours, detail="name:N")
    )
    rules = (
        alt.Chart(alt.Data(values=ticks))
        .mark_rule(strokeWidth=2)
        .encode(x=x, y=y, y2="top:Q", color=colours, description="words:N")
    )
    titles = (
        alt.Chart(alt.Data(values=names))
        .mark_text(align="left", baseline="middle", color=theme.ink(), fontSize=12, fontWeight=500)
        .encode(x=alt.value(4), y=y, text="text:N")
    )
    layers = [area, rules, titles, *_values(alt, known, across, height, x, y)]
    chart: LayerChart = alt.layer(*layers).properties(width=width, height=height)
    return chart


def percentiles(ordered: Sequence[float]) -> list[tuple[str, float]]:
    """The percentiles that so many samples can tell: at least ten of them must lie above (nearest rank)."""
    found = []
    for title, share in PERCENTILES:
        if share == 0.5 or len(ordered) * (1 - share) >= 10:
            found.append((title, ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]))
    return found


def density(ordered: Sequence[float], across: LogAxis) -> list[tuple[float, float]]:
    """(latency, share of the highest point): a histogram over the logarithm, smoothed to what the samples support."""
    counts = [0.0] * BINS
    for value in ordered:
        counts[min(BINS - 1, max(0, int(across.at(value) / across.pixels * BINS)))] += 1
    # Silverman's rule on the bins, never narrower than one: few samples give a smooth shape and not a comb.
    mean = sum(i * c for i, c in enumerate(counts)) / len(ordered)
    spread = math.sqrt(sum(c * (i - mean) ** 2 for i, c in enumerate(counts)) / len(ordered))
    quarter = [
        across.at(ordered[min(len(ordered) - 1, int(len(ordered) * q))]) * BINS / across.pixels for q in (0.25, 0.75)
    ]
    robust = min(spread, (quarter[1] - quarter[0]) / 1.34) or spread
    width = max(1.0, 0.9 * robust * len(ordered) ** -0.2)
    reach = math.ceil(3 * width)
    kernel = [math.exp(-0.5 * (i / width) ** 2) for i in range(-reach, reach + 1)]
    smooth = [
        sum(k * counts[i + j - reach] for j, k in enumerate(kernel) if 0 <= i + j - reach < BINS) for i in range(BINS)
    ]
    most = max(smooth) or 1.0
    return [(across.value((i + 0.5) * across.pixels / BINS), value / most) for i, value in enumerate(smooth)]


def _words(name: str, title: str, value: float) -> str:
    return f"{name}: {title} {microseconds(value * 1e3)}"


def _values(
    alt: Any, known: Mapping[str, Sequence[float]], across: LogAxis, height: float, x: Any, y: Any
) -> list[Any]:
    """The percentiles in figures, at the right end of each row's title line."""
    rows = []
    for number, (name, values) in enumerate(known.items()):
        room = across.pixels - text_width(name, 12) - 24
        text = _fitting([f"{title} {microseconds(value * 1e3)}" for title, value in percentiles(values)], room)
        rows.append({"x": across.value(across.pixels - 4), "y": height - ROW * number - 14, "text": text})
    mark = alt.Chart(alt.Data(values=rows)).mark_text(align="right", baseline="middle", color=theme.ink(), opacity=0.75)
    return [mark.encode(x=x, y=y, text="text:N")]


def _fitting(parts: Sequence[str], room: float) -> str:
    """As many of `parts` as fit in `room` pixels: the first and the last ones matter most."""
    kept = list(parts)
    while len(kept) > 1 and text_width(" · ".join(kept), 11) > room:
        kept.pop(1 if len(kept) > 2 else -1)
    return " · ".join(kept)
