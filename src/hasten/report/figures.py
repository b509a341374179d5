"""The headline numbers: each with its interval, what it was before, and a mark where it is an estimate."""

from __future__ import annotations

from hasten.measurement import Figure, Trial
from hasten.report.html import Markup, el
from hasten.report.story import improved
from hasten.report.words import (
    LABELS,
    drop_text,
    estimated,
    interval,
    metric_name,
    say,
    times,
    times_interval,
    value_and_unit,
)
from hasten.study import Study

SHOWN = (
    "throughput_per_s",
    "tokens_per_s",
    "ttft_ms",
    "latency_ms.p50",
    "latency_ms.p99",
    "peak_memory_mb",
    "device_memory_mb",
    "size_mb",
    "energy_j_per_inference",
    "cost_per_million",
    "cache_hit_rate",
    "similar_rate",
    "prefix_hit_rate",
)


def headline_figures(study: Study) -> Markup:
    """A row of the few numbers that matter; those of the best trial, with the model as brought beside each."""
    best, before = study.best, study.baseline
    if best is None:
        return Markup("")
    tiles = []
    if best.speedup is not None and improved(study) is not None:
        tiles.append(_tile("Improvement", times(best.speedup.value), "", times_interval(best.speedup), "", True))
    quality = best.measurement.quality
    if quality is not None and improved(study) is not None:
        text, _, unit = drop_text(quality.drop).replace("%", " %").partition(" ")
        allowed = f"{study.goal.max_drop} allowed"
        tiles.append(_tile(f"Drop in {metric_name(quality.metric)}", text, unit, interval(quality.drop), allowed))
    tiles.extend(_figure_tile(name, best, before) for name in SHOWN if best.measurement.figures.get(name) is not None)
    return el("dl", tiles, class_="figures")


def _figure_tile(name: str, best: Trial, before: Trial | None) -> Markup:
    figure = best.measurement.figures[name]
    was = before.measurement.figures.get(name) if before is not None and before.id != best.id else None
    text, unit = value_and_unit(figure)
    note = f"was {say(was)}" if was is not None else ""
    return _tile(LABELS[name], text, unit, interval(figure), note, source=_source(figure))


def _source(figure: Figure) -> str:
    return figure.source if estimated(figure) else ""


def _tile(label: str, text: str, unit: str, spread: str, note: str, main: bool = False, source: str = "") -> Markup:
    return el(
        "div",
        el("dt", label, el("abbr", "est.", title=source) if source else None),
        el("dd", text, el("small", unit) if unit else None, class_="value"),
        el("dd", spread, class_="spread", title="95% confidence interval") if spread else None,
        el("dd", note, class_="note") if note else None,
        class_="main" if main else None,
    )
