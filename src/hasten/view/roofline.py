"""The roofline plot: operators under the roofs of their device, before and after."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hasten.device import Device
from hasten.view import theme
from hasten.view.axis import LogAxis
from hasten.view.labels import Anchor, Box, place, text_width
from hasten.view.number import microseconds, percent, short

if TYPE_CHECKING:
    from altair import LayerChart

PRECISIONS = ("fp32", "bf16", "fp16", "int8")
CLOSE = 1.12
"""Roofs nearer to each other than this factor share one line and one label."""
LABELLED = 6
LEAST_SHARE = 0.001
LINE = 13
"""Pixels from one line of text to the next."""


@dataclass(frozen=True)
class Point:
    """One operator: FLOPs for each byte, achieved GFLOP/s, its share of the run, and what bounds it."""

    name: str
    kind: str
    intensity: float
    gflops: float
    share: float
    by: str
    microseconds: float = 0.0
    fraction: float | None = None
    precision: str = ""

    @property
    def words(self) -> str:
        reach = "" if self.fraction is None else f", {percent(self.fraction)} of its roof"
        return (
            f"{self.name} ({self.kind}): {microseconds(self.microseconds)}, {percent(self.share)} of the run, "
            f"{short(self.gflops)} GFLOP/s at {short(self.intensity)} FLOP/byte {self.precision}{reach}, "
            f"{self.by}-bound"
        )


def points(profile: Mapping[str, Any]) -> list[Point]:
    """The operators of a profile's JSON that have arithmetic and a share that can be seen, the longest first."""
    return [
        Point(
            row["name"],
            row["kind"],
            row["intensity"],
            row["gflops"],
            row["share"],
            row["by"],
            row["microseconds"],
            row["fraction"],
            row["precision"],
        )
        for row in profile["rows"]
        if row.get("intensity") and row.get("gflops") and row["share"] >= LEAST_SHARE
    ]


def roofline_svg(
    after: Mapping[str, Any],
    before: Mapping[str, Any] | None = None,
    *,
    width: int = 760,
    height: int = 420,
    style: theme.Theme = theme.ADAPTIVE,
    key: str = "roofline",
) -> str:
    """Draw one profile (the JSON of `diagnose.Profile`), or two over each other."""
    device = Device.from_json(after["device"])
    share = max(after["device_share"], before["device_share"] if before else 0.0)
    second = points(before) if before else []
    chart = roofline(device, points(after), second, device_share=share, width=width, height=height)
    label = f"Roofline of {device.name}: {len(after['rows'])} operators by arithmetic intensity and achieved rate."
    return theme.svg(chart, theme=style, label=label, key=key)


def roofline(
    device: Device,
    after: Sequence[Point],
    before: Sequence[Point] = (),
    *,
    device_share: float = 1.0,
    width: int = 760,
    height: int = 420,
) -> LayerChart:
    """The chart. With `before`, its operators are rings and those of `after` are discs; else colour says the bound."""
    alt = theme.altair()
    rates = {name: rate * device_share for name in PRECISIONS if (rate := device.gemm_gflops(name))}
    figure = device.limits.get("read_gb_s")
    memory = None if figure is None else figure.value * device_share
    shown = [*after, *before]
    across, up = _axes(shown, rates, memory, width, height)
    x = _encoding(alt.X, "x", across, "arithmetic intensity (FLOP / byte)", most=8 if width > 500 else 5)
    y = _encoding(alt.Y, "y", up, "achieved rate (GFLOP/s)", most=7)
    lines, tags, taken = _roofs(rates, memory, shown, across, up)
    layers: list[Any] = []
    if lines:
        layers.append(_lines(alt, lines, x, y))
        layers += _tags(alt, tags, x, y)
    if shown:
        layers += _dots(alt, after, before, x, y)
        layers += _names(alt, after or before, shown, across, up, taken, x, y)
    if not layers:
        layers.append(alt.Chart(alt.Data(values=[])).mark_point().encode(x=x, y=y))
    chart: LayerChart = alt.layer(*layers).properties(width=width, height=height)
    return chart


def _axes(
    shown: Sequence[Point], rates: Mapping[str, float], memory: float | None, width: float, height: float
) -> tuple[LogAxis, LogAxis]:
    """Every point and every roof with its ridge is inside."""
    xs = [p.intensity for p in shown] + [rate / memory for rate in rates.values() if memory]
    ys = [p.gflops for p in shown] + list(rates.values())
    if rates and memory:
        xs.append(4 * max(rates.values()) / memory)
    low = max(min(ys, default=1.0), max(ys, default=1.0) / 1e6)  # a stray tiny operator must not squash the rest
    return (
        LogAxis.around([max(v, max(xs) / 1e7) for v in xs], width),
        LogAxis.around([max(v, low) for v in ys], height, flip=True, margin=0.08),
    )


def _encoding(channel: Any, field: str, axis: LogAxis, title: str, most: int) -> Any:
    alt = theme.altair()
    return channel(
        f"{field}:Q",
        scale=alt.Scale(type="log", domain=[axis.low, axis.high], nice=False),
        axis=alt.Axis(values=axis.ticks(most), format=",~r", title=title, labelOverlap="greedy"),
    )


@dataclass(frozen=True)
class Tag:
    """A text that names a roof: it starts at data (x, y), turned by `angle` degrees."""

    text: str
    x: float
    y: float
    angle: float = 0.0


def _roofs(
    rates: Mapping[str, float], memory: float | None, shown: Sequence[Point], across: LogAxis, up: LogAxis
) -> tuple[list[dict[str, Any]], list[Tag], list[Box]]:
    """Horizontal lines for arithmetic from the ridge on, one slope for memory, and where their texts stand."""
    lines: list[dict[str, Any]] = []
    tags: list[Tag] = []
    taken: list[Box] = []
    above = math.inf
    for names, rate in _merged(rates):
        start = max(across.low, rate / memory) if memory else across.low
        lines += [{"x": at, "y": rate, "roof": names[0]} for at in (start, across.high)]
        # In the right margin, where no point can be; a label above its own line when the roof below is near.
        at = min(up.at(rate), above - LINE)
        above = at
        tags.append(Tag(f"{', '.join(names)}  {short(rate)}", across.value(across.pixels + 7), up.value(at)))
        taken.append(Box(across.at(start), up.at(rate) - 3, across.pixels, up.at(rate) + 3))
    if memory:
        top = max(rates.values(), default=up.high)
        end = min(across.high, top / memory)
        begin = max(across.low, up.low / memory)
        lines += [{"x": at, "y": at * memory, "roof": "memory"} for at in (begin, end)]
        rise = (up.at(begin * memory) - up.at(end * memory)) / max(1e-9, across.at(end) - across.at(begin))
        tags.append(_slope_tag(f"memory  {short(memory)} GB/s", rise, (begin, end), memory, shown, across, up))
        steps = 24
        for step in range(steps):
            at = across.value(across.at(begin) + (across.at(end) - across.at(begin)) * (step + 0.5) / steps)
            px, py = across.at(at), up.at(at * memory)
            taken.append(Box(px - 12, py - 8, px + 12, py + 8))
    return lines, tags, taken


def _slope_tag(
    text: str,
    rise: float,
    ends: tuple[float, float],
    memory: float,
    shown: Sequence[Point],
    across: LogAxis,
    up: LogAxis,
) -> Tag:
    """Along the slope, above it, where the fewest points are in the way."""
    wide, away = text_width(text, 11), math.hypot(1, rise)
    first, last = across.at(ends[0]) + 14, across.at(ends[1]) - wide / away
    dots = [(across.at(p.intensity), up.at(p.gflops)) for p in shown]

    def crowded(start: float) -> int:
        base = up.at(across.value(start) * memory)
        found = 0
        for x, y in dots:
            along = ((x - start) - rise * (y - base)) / away
            above = -((y - base) + rise * (x - start)) / away
            found += -8 < along < wide + 8 and -4 < above < 22
        return found

    steps = [first + (last - first) * i / 12 for i in range(13)] if last > first else [first]
    px = min(steps, key=lambda start: (crowded(start), start))
    base = up.at(across.value(px) * memory)
    return Tag(text, across.value(px), up.value(base - 9 * away), -math.degrees(math.atan(rise)))


def _merged(rates: Mapping[str, float]) -> list[tuple[list[str], float]]:
    """Roofs that lie on each other become one, called by all their names."""
    found: list[tuple[list[str], float]] = []
    for name, rate in sorted(rates.items(), key=lambda item: item[1]):
        if found and rate / found[-1][1] < CLOSE:
            names, _ = found.pop()
            found.append(([*names, name], rate))
        else:
            found.append(([name], rate))
    return found


def _lines(alt: Any, lines: list[dict[str, Any]], x: Any, y: Any) -> Any:
    return (
        alt.Chart(alt.Data(values=lines))
        .mark_line(strokeWidth=1.6, color=theme.ink(), opacity=0.45, strokeCap="round")
        .encode(x=x, y=y, detail="roof:N")
    )


def _tags(alt: Any, tags: Sequence[Tag], x: Any, y: Any) -> list[Any]:
    return [
        alt.Chart(alt.Data(values=[{"x": tag.x, "y": tag.y, "text": tag.text}]))
        .mark_text(align="left", baseline="middle", angle=tag.angle % 360, color=theme.ink(), opacity=0.7, fontSize=11)
        .encode(x=x, y=y, text="text:N")
        for tag in tags
    ]


def _area(share: float) -> float:
    """The area of a marker in square pixels: proportional to time, and never too small to see."""
    return 24 + 900 * min(1.0, max(0.0, share))


def _record(point: Point) -> dict[str, Any]:
    return {
        "x": point.intensity,
        "y": point.gflops,
        "area": _area(point.share),
        "by": point.by,
        "words": point.words,
    }


def _dots(alt: Any, after: Sequence[Point], before: Sequence[Point], x: Any, y: Any) -> list[Any]:
    area = alt.Size("area:Q", scale=alt.Scale(domain=[24, 924], range=[24, 924]), legend=None)
    group = alt.Scale(domain=["before", "after"], range=[theme.GREY, theme.BLUE])
    bounds = [name for name in theme.BOUND if any(p.by == name for p in after)]
    colours = alt.Scale(domain=bounds, range=[theme.BOUND[name] for name in bounds])
    layers = []
    if before:
        rings = [_record(point) | {"group": "before"} for point in reversed(before)]
        layers.append(
            alt.Chart(alt.Data(values=rings))
            .mark_point(filled=True, fillOpacity=0.18, stroke=theme.GREY, strokeWidth=1.3)
            .encode(
                x=x,
                y=y,
                size=area,
                color=alt.Color("group:N", scale=group),
                description="words:N",
            )
        )
    discs = [_record(point) | {"group": "after"} for point in reversed(after)]
    colour = alt.Color("group:N", scale=group) if before else alt.Color("by:N", scale=colours)
    layers.append(
        alt.Chart(alt.Data(values=discs))
        .mark_point(filled=True, opacity=0.88, stroke=theme.surface(), strokeWidth=0.8)
        .encode(x=x, y=y, size=area, color=colour, description="words:N")
    )
    return layers


def _names(
    alt: Any,
    named: Sequence[Point],
    shown: Sequence[Point],
    across: LogAxis,
    up: LogAxis,
    taken: Sequence[Box],
    x: Any,
    y: Any,
) -> list[Any]:
    """The names of the operators that take most time, where they cover nothing."""
    longest = sorted(named, key=lambda point: -point.share)[:LABELLED]
    chosen = {id(point) for point in longest if point.share >= 0.02}
    ordered = sorted(shown, key=lambda point: (id(point) not in chosen, -point.share))
    anchors = [
        Anchor(
            across.at(point.intensity),
            up.at(point.gflops),
            math.sqrt(_area(point.share) / math.pi),
            f"{_clip(point.name)}  {percent(point.share)}" if id(point) in chosen else "",
        )
        for point in ordered
    ]
    layers = []
    labels = place(anchors, across.pixels, up.pixels, taken=taken)
    for align in ("left", "center", "right"):
        values = [
            {"x": across.value(label.x), "y": up.value(label.y), "text": label.text}
            for label in labels
            if label.align == align
        ]
        if values:
            layers.append(
                alt.Chart(alt.Data(values=values))
                .mark_text(align=align, baseline="middle", color=theme.ink(), opacity=0.9, fontSize=11)
                .encode(x=x, y=y, text="text:N")
            )
    return layers


def _clip(name: str, most: int = 26) -> str:
    """The telling end of a long operator name."""
    return name if len(name) <= most else f"…{name[-most + 1 :]}"
