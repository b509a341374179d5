"""The Pareto plot of a study: improvement against quality lost, with what was chosen and what may be lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hasten.measurement import Trial
from hasten.study import Study
from hasten.view import theme
from hasten.view.axis import LogAxis
from hasten.view.labels import Anchor, place
from hasten.view.number import ratio, short

if TYPE_CHECKING:
    from altair import LayerChart

BEYOND = 3.0
"""Drops above this many times the allowed one are held at the lower edge: a broken variant must not squash the rest."""
ROLES = ("chosen", "Pareto set", "baseline", "other", "rejected")
COLOURS = (theme.GREEN, theme.BLUE, theme.VIOLET, theme.GREY, theme.RED)
SHAPES = ("circle", "circle", "diamond", "circle", "cross")
BASELINES = {"brought": "as brought", "full-precision": "full precision"}


@dataclass(frozen=True)
class Spot:
    """One trial on the plot; `held` is True where its drop is beyond the lower edge."""

    trial: Trial
    improvement: float
    drop: float
    role: str
    held: bool = False

    @property
    def words(self) -> str:
        recipe = self.trial.recipe.describe() or "as brought"
        return f"{recipe}: {ratio(self.improvement)}, {short(self.drop)} lost, {self.trial.status}. {self.trial.reason}"

    @property
    def label(self) -> str:
        if self.role == "chosen":
            return f"{self.trial.recipe.describe()}  {ratio(self.improvement)}"
        if self.held:
            return f"{short(self.drop)} lost"
        return BASELINES.get(self.trial.origin, "")


def spots(study: Study) -> tuple[Spot, ...]:
    """The trials that have an improvement; without a quality they lost nothing that was looked at."""
    found = []
    for trial in study.trials:
        if trial.speedup is None or trial.speedup.value <= 0:
            continue
        quality = trial.measurement.quality
        drop = 0.0 if quality is None else quality.drop.value
        allowed = study.goal.max_drop.amount
        held = allowed > 0 and drop > BEYOND * allowed
        found.append(Spot(trial, trial.speedup.value, drop, _role(trial, study), held))
    return tuple(found)


def pareto_svg(
    study: Study,
    *,
    width: int = 760,
    height: int = 380,
    style: theme.Theme = theme.ADAPTIVE,
    key: str = "pareto",
) -> str:
    """Draw the study."""
    label = f"{len(spots(study))} trials by improvement and by quality lost."
    return theme.svg(pareto(study, width=width, height=height), theme=style, label=label, key=key)


def pareto(study: Study, *, width: int = 760, height: int = 380) -> LayerChart:
    """Improvement grows to the right, quality to the top: the upper right corner is where everything should be."""
    alt = theme.altair()
    found = spots(study)
    allowed = study.goal.max_drop.amount
    across = LogAxis.around([1.0, *(spot.improvement for spot in found)], width, margin=0.08)
    inside = [spot.drop for spot in found if not spot.held]
    low, high = min([0.0, *inside]), max([1.25 * allowed, *inside]) or 1.0
    gap = 0.1 * (high - low)
    bottom = high + (2.5 * gap if any(spot.held for spot in found) else gap)
    up = (low - gap, bottom)
    x = alt.X(
        "x:Q",
        scale=alt.Scale(type="log", domain=[across.low, across.high], nice=False),
        axis=alt.Axis(values=across.ticks(8 if width > 500 else 5), labelExpr="format(datum.value, ',~r') + 'x'",
                      title=f"better by (goal: {study.goal.optimise})", labelOverlap="greedy"),
    )  # fmt: skip
    y = alt.Y(
        "y:Q",
        scale=alt.Scale(domain=[up[1], up[0]], nice=False),
        axis=alt.Axis(title=f"quality lost ({_unit(study)})", tickCount=5, format="~r"),
    )
    layers = _rules(alt, x, y, across, allowed, study)
    layers += _frontier(alt, x, y, [spot for spot in found if spot.role in ("chosen", "Pareto set")])
    if found:
        layers += _marks(alt, x, y, found, high + 1.5 * gap)
        layers += _names(alt, x, y, found, across, up, height, high + 1.5 * gap)
    chart: LayerChart = alt.layer(*layers).properties(width=width, height=height)
    return chart


def _role(trial: Trial, study: Study) -> str:
    if trial.id == study.best_id:
        return "chosen"
    if trial.origin in BASELINES:
        return "baseline"
    if trial.status != "ok":
        return "rejected"
    return "Pareto set" if trial.id in study.pareto else "other"


def _unit(study: Study) -> str:
    quality = next((t.measurement.quality for t in study.trials if t.measurement.quality is not None), None)
    unit = quality.drop.unit if quality is not None else study.goal.max_drop.unit
    return "points" if unit == "pt" else f"{unit} of the baseline"


def _rules(alt: Any, x: Any, y: Any, across: LogAxis, allowed: float, study: Study) -> list[Any]:
    one = alt.Chart(alt.Data(values=[{"x": 1.0}])).mark_rule(color=theme.ink(), opacity=0.35).encode(x=x)
    limit = (
        alt.Chart(alt.Data(values=[{"y": allowed}]))
        .mark_rule(color=theme.RED, opacity=0.75, strokeDash=[5, 4])
        .encode(y=y)
    )
    name = (
        alt.Chart(alt.Data(values=[{"x": across.value(across.pixels - 4), "y": allowed, "text": _allowed(study)}]))
        .mark_text(align="right", baseline="top", dy=6, color=theme.ink(), opacity=0.75)
        .encode(x=x, y=y, text="text:N")
    )
    return [one, limit, name]


def _allowed(study: Study) -> str:
    return f"{study.goal.max_drop} may be lost"


def _frontier(alt: Any, x: Any, y: Any, best: Sequence[Spot]) -> list[Any]:
    ordered = sorted((spot for spot in best if not spot.held), key=lambda spot: spot.improvement)
    if len(ordered) < 2:
        return []
    values = [{"x": spot.improvement, "y": spot.drop} for spot in ordered]
    line = alt.Chart(alt.Data(values=values)).mark_line(color=theme.BLUE, strokeWidth=1.5, opacity=0.55)
    return [line.encode(x=x, y=y, order="x:Q")]


def _marks(alt: Any, x: Any, y: Any, found: Sequence[Spot], edge: float) -> list[Any]:
    ordered = sorted(found, key=lambda spot: -ROLES.index(spot.role))
    values = []
    for spot in ordered:
        interval = spot.trial.speedup.ci95 if spot.trial.speedup is not None else None
        quality = spot.trial.measurement.quality
        drop = quality.drop.ci95 if quality is not None and not spot.held else None
        y_at = edge if spot.held else spot.drop
        values.append(
            {
                "x": spot.improvement,
                "y": y_at,
                "role": spot.role,
                "size": 170 if spot.role == "chosen" else 75,
                "words": spot.words,
                "x1": interval[0] if interval else spot.improvement,
                "x2": interval[1] if interval else spot.improvement,
                "y1": drop[0] if drop else y_at,
                "y2": drop[1] if drop else y_at,
            }
        )
    data = alt.Data(values=values)
    roles = [role for role in ROLES if any(spot.role == role for spot in found)]
    colour = alt.Color("role:N", scale=alt.Scale(domain=roles, range=[COLOURS[ROLES.index(role)] for role in roles]))
    shape = alt.Shape("role:N", scale=alt.Scale(domain=roles, range=[SHAPES[ROLES.index(role)] for role in roles]))
    bars = [
        alt.Chart(data)
        .mark_rule(opacity=0.4, strokeWidth=1.2, clip=True)
        .encode(x=x1, x2=x2, y=y1, y2=y2, color=colour)
        for x1, x2, y1, y2 in (
            (_at(x, "x1"), alt.X2("x2:Q"), y, alt.Undefined),
            (x, alt.Undefined, _at(y, "y1"), alt.Y2("y2:Q")),
        )
    ]
    points = (
        alt.Chart(data)
        .mark_point(filled=True, opacity=0.95, stroke=theme.surface(), strokeWidth=0.8)
        .encode(x=x, y=y, color=colour, shape=shape, size=alt.Size("size:Q", scale=None), description="words:N")
    )
    return [*bars, points]


def _at(channel: Any, field: str) -> Any:
    """The same axis over another field."""
    other = channel.copy()
    other.shorthand = f"{field}:Q"
    return other


def _names(
    alt: Any,
    x: Any,
    y: Any,
    found: Sequence[Spot],
    across: LogAxis,
    up: tuple[float, float],
    height: float,
    edge: float,
) -> list[Any]:
    def pixel(spot: Spot) -> float:
        return height * ((edge if spot.held else spot.drop) - up[0]) / (up[1] - up[0])

    ordered = sorted(found, key=lambda spot: ROLES.index(spot.role))
    anchors = [
        Anchor(across.at(spot.improvement), pixel(spot), 8 if spot.role == "chosen" else 6, spot.label)
        for spot in ordered
    ]
    labels = place(anchors, across.pixels, height)
    layers = []
    for align in ("left", "center", "right"):
        values = [
            {"x": across.value(label.x), "y": up[0] + (up[1] - up[0]) * label.y / height, "text": label.text}
            for label in labels
            if label.align == align
        ]
        if values:
            mark = alt.Chart(alt.Data(values=values)).mark_text(align=align, baseline="middle", color=theme.ink())
            layers.append(mark.encode(x=x, y=y, text="text:N"))
    return layers
