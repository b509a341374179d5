"""The plots of trials: improvement against quality, and the latency of the variants that matter."""

from __future__ import annotations

from collections.abc import Container, Sequence
from itertools import pairwise

from hasten.measure.statistics import pareto
from hasten.measurement import Trial
from hasten.report.chart import Chart, Scale, legend, tick_text
from hasten.report.html import Markup, el
from hasten.report.trials import ROLE
from hasten.report.words import drop_text, metric_name, say, times
from hasten.study import Study

PERCENTILES = ("latency_ms.p50", "latency_ms.p90", "latency_ms.p99", "latency_ms.p999")


def pareto_figure(study: Study) -> Markup | None:
    """Every trial with an improvement and a quality. Drops far beyond what is allowed are held at the right edge."""
    points = [
        (trial, trial.measurement.quality.drop.value, trial.speedup.value)
        for trial in study.trials
        if trial.measurement.quality is not None and trial.speedup is not None
    ]
    if len(points) < 2:
        return None
    allowed = study.goal.max_drop.amount
    drops = [drop for _, drop, _ in points]
    right = min(max(*drops, 1.3 * allowed), 2.2 * allowed) if allowed > 0 else max(*drops, 1.0)
    left = min(0.0, *drops)
    margin = 0.06 * (right - left)
    chart = Chart(Scale(left - margin, right + margin), Scale(0, max(speed for *_, speed in points) * 1.12))
    marks: list[Markup] = []
    if allowed > 0:
        edge = chart.across.share(allowed)
        marks.append(
            el("rect", x=chart.x(allowed), y=0, width=f"{100 * (1 - edge):.2f}%", height=chart.height, class_="beyond")
        )
        marks.append(el("line", x1=chart.x(allowed), x2=chart.x(allowed), y1=0, y2=chart.height, class_="limit"))
        marks.append(
            el("text", f"{study.goal.max_drop} allowed", x=chart.x(allowed), y=-6, text_anchor="middle", class_="tick")
        )
    marks.append(el("line", x1=0, x2="100%", y1=chart.y(1), y2=chart.y(1), class_="rule"))
    unbeaten = frontier(points)
    ids = {trial.id for trial, *_ in unbeaten}
    marks += [chart.segment(left[1:], right[1:], "frontier") for left, right in pairwise(unbeaten)]
    marks += [
        _dot(chart, study, *point, point[0].id in ids)
        for point in sorted(points, key=lambda p: _importance(p[0], study, ids))
    ]
    marks += _far(chart, points)
    labelled = [p for p in points if p[0].id == study.best_id or p[0].origin != "search"]
    marks += [_name(chart, study, *point) for point in labelled]
    quality = next(t.measurement.quality for t, *_ in points if t.measurement.quality is not None)
    unit = quality.drop.unit
    return chart.render(
        marks,
        x_title=f"drop in {metric_name(quality.metric)}, {'points' if unit == 'pt' else unit} →",
        y_title=f"↑ improvement in {study.goal.optimise}, ×",
        label=f"{len(points)} trials by improvement and by drop in {metric_name(quality.metric)}.",
        legend=legend(
            [("dot chosen", "chosen"), ("dot pareto", "unbeaten here"), ("dot", "other"), ("dot honest", "baseline")]
        ),
    )


def frontier(points: Sequence[tuple[Trial, float, float]]) -> list[tuple[Trial, float, float]]:
    """The points that none beats in drop and improvement together, the least drop first.

    Not the study's Pareto set, which looks at memory and size too: a point of that may be beaten on the two axes drawn.
    """
    found = pareto([point[1:] for point in points], (False, True))
    return sorted((points[index] for index in found), key=lambda point: point[1:])


def _importance(trial: Trial, study: Study, unbeaten: Container[str]) -> int:
    return 3 if trial.id == study.best_id else 2 if trial.origin != "search" else 1 if trial.id in unbeaten else 0


def _dot(chart: Chart, study: Study, trial: Trial, drop: float, speedup: float, unbeaten: bool) -> Markup:
    kind = ["dot"]
    radius = 4.0
    if trial.id == study.best_id:
        kind, radius = ["dot", "chosen"], 6.5
    elif trial.origin != "search":
        kind, radius = ["dot", "honest"], 5.0
    elif unbeaten:
        kind, radius = ["dot", "pareto"], 4.5
    words = f"{trial.recipe.describe() or 'no change'}: {times(speedup)}, drop {_drop(trial)}. {trial.reason}"
    return el("circle", el("title", words), cx=chart.x(drop), cy=chart.y(speedup), r=radius, class_=" ".join(kind))


def _far(chart: Chart, points: Sequence[tuple[Trial, float, float]]) -> list[Markup]:
    """Says how far to the right those points are that are held at the edge, where there is room to say it."""
    words: list[Markup] = []
    taken: list[float] = []
    for trial, drop, speedup in sorted(points, key=lambda p: -p[1]):
        at = chart.y(speedup)
        if drop > chart.across.high and all(abs(at - other) > 14 for other in taken):
            text = f"{_drop(trial)} →"
            words.append(el("text", text, x="100%", dx=-10, y=at + 4, text_anchor="end", class_="tick"))
            taken.append(at)
    return words


def _drop(trial: Trial) -> str:
    return drop_text(trial.measurement.quality.drop) if trial.measurement.quality is not None else "–"


def _name(chart: Chart, study: Study, trial: Trial, drop: float, speedup: float) -> Markup:
    chosen = trial.id == study.best_id
    words = f"chosen, {times(speedup)}" if chosen else ROLE.get(trial.origin, trial.origin)
    left = chart.across.share(drop) > 0.6
    return el(
        "text",
        words,
        x=chart.x(drop),
        dx=-11 if left else 11,
        y=chart.y(speedup) + 4,
        text_anchor="end" if left else None,
        class_="name chosen" if chosen else "name",
    )


def latency_figure(study: Study) -> Markup | None:
    """One row for each variant that matters: a line that thins from the median towards the 99.9th percentile."""
    rows = []
    for trial in study.trials:
        if trial.origin != "search" or trial.id == study.best_id:
            figures = trial.measurement.figures
            if figures.get("latency_ms.p50") is not None:
                rows.append(trial)
    if not rows:
        return None
    values = [
        trial.measurement.figures[name].value
        for trial in rows
        for name in PERCENTILES
        if name in trial.measurement.figures
    ]
    scale = Scale(min(values) * 0.8, max(values) * 1.15, log=True)
    body = [_latency_row(trial, study, scale) for trial in sorted(rows, key=lambda t: t.id == study.best_id)]
    ticks = [
        el("text", f"{tick_text(value)} ms", x=scale.percent(value), y=12, text_anchor="middle")
        for value in scale.ticks(4)
    ]
    axis = el(
        "div", el("span"), el("svg", ticks, class_="axis", height=16, aria_hidden="true"), el("span"), class_="scale"
    )
    return el("div", body, axis, class_="drops latency")


def _latency_row(trial: Trial, study: Study, scale: Scale) -> Markup:
    figures = trial.measurement.figures
    found = [(name, figures[name]) for name in PERCENTILES if name in figures]
    chosen = trial.id == study.best_id
    parts = [
        el("line", x1=scale.percent(value), x2=scale.percent(value), y1=0, y2=26, class_="grid")
        for value in scale.ticks(4)
    ]
    for step, ((_, left), (_, right)) in enumerate(pairwise(found)):
        x1, x2 = scale.percent(left.value), scale.percent(right.value)
        parts.append(el("line", x1=x1, x2=x2, y1=13, y2=13, class_=f"tail tail-{step}"))
    for name, figure in found:
        spread = f", 95% interval {figure.ci95[0]:.3g} to {figure.ci95[1]:.3g} ms" if figure.ci95 else ""
        words = f"{_percentile(name)}: {say(figure)}{spread}"
        parts.append(
            el("circle", el("title", words), cx=scale.percent(figure.value), cy=13, r=5 if name.endswith("p50") else 3)
        )
    tail = figures.get("latency_ms.p99")
    name = "chosen" if chosen else ROLE.get(trial.origin, trial.origin)
    return el(
        "div",
        el("span", el("b", name), el("code", trial.recipe.describe() or "no change"), class_="name"),
        el("svg", parts, class_="strip tall", height=26, aria_hidden="true"),
        el(
            "span",
            el("b", say(figures["latency_ms.p50"])),
            el("small", f"p99 {say(tail)}") if tail is not None else None,
            class_="num",
        ),
        class_="chosen" if chosen else None,
    )


def _percentile(name: str) -> str:
    return {"latency_ms.p50": "median", "latency_ms.p999": "p99.9"}.get(name, name.rpartition(".")[2])
