"""Numbers and sentences: how the report says a figure, an interval, a change and a source."""

from __future__ import annotations

import math
from dataclasses import replace

from hasten.goal import Goal
from hasten.measurement import Figure, Quality, Trial
from hasten.view.number import short

LABELS = {
    "latency_ms.p50": "Latency, median",
    "latency_ms.p90": "Latency, p90",
    "latency_ms.p99": "Latency, p99",
    "latency_ms.p999": "Latency, p99.9",
    "throughput_per_s": "Throughput",
    "tokens_per_s": "Tokens a second",
    "ttft_ms": "First token, median",
    "tpot_ms": "Each further token, median",
    "peak_memory_mb": "Peak memory",
    "device_memory_mb": "Memory on the GPU",
    "size_mb": "Model size",
    "energy_j_per_inference": "Energy per inference",
    "cost_per_million": "Cost per million",
    "co2e_g_per_million": "CO₂e per million",
    "cache_hit_rate": "Answers from the cache",
    "similar_rate": "Answers from similar inputs",
    "prefix_hit_rate": "Prompt not read again",
}

STATUS = {"ok": "passed", "rejected": "rejected", "undecided": "undecided", "failed": "failed"}

_GAIN = {
    "latency_ms.p50": "faster per request",
    "latency_ms.p99": "faster at the 99th percentile",
    "throughput_per_s": "the throughput",
    "peak_memory_mb": "less memory",
    "size_mb": "smaller",
    "energy_j_per_inference": "less energy",
    "cost_per_million": "cheaper",
}


def number(value: float, digits: int = 3) -> str:
    """`value` to `digits` significant figures, with a true minus sign."""
    return short(value, digits).replace("-", "−")


def span(low: float, high: float) -> str:
    """Both ends of an interval, to two significant figures of its width: what is finer than that is noise."""
    width = abs(high - low)
    size = width if width > 0 else max(abs(low), abs(high), 1.0) / 10
    places = min(max(1 - math.floor(math.log10(size)), 0), 9) if math.isfinite(size) else 0

    def end(value: float) -> str:
        text = f"{value:,.{places}f}"
        return (text.lstrip("-") if not text.strip("-0.,") else text).replace("-", "−")

    return f"{end(low)} to {end(high)}"


def times(value: float) -> str:
    """A ratio: 5.48×."""
    return f"{value:,.2f}×" if value < 100 else f"{value:,.0f}×"


def times_interval(figure: Figure | None) -> str:
    if figure is None or figure.ci95 is None:
        return ""
    return f"{figure.ci95[0]:,.2f} to {figure.ci95[1]:,.2f}"


def scaled(figure: Figure) -> tuple[float, str]:
    """The factor and the unit that read best: joules below 0.1 become mJ, a thousand MB become GB."""
    if figure.unit == "J" and abs(figure.value) < 0.1:
        return (1e3, "mJ") if abs(figure.value) >= 1e-4 else (1e6, "µJ")
    if figure.unit == "MB" and abs(figure.value) < 0.1:
        return 1e3, "kB"
    if figure.unit == "MB" and abs(figure.value) >= 1000:
        return 1e-3, "GB"
    if figure.unit == "ms" and abs(figure.value) < 0.1:
        return 1e3, "µs"
    return 1.0, {"us": "µs", "per_s": "/s", "1": "", "ratio": "", "x": "×"}.get(figure.unit, figure.unit)


def value_and_unit(figure: Figure) -> tuple[str, str]:
    scale, unit = scaled(figure)
    return number(figure.value * scale), unit


def say(figure: Figure | None) -> str:
    """`2.61 ms`; `–` where there is none."""
    if figure is None:
        return "–"
    text, unit = value_and_unit(figure)
    return f"{text}{'' if unit in ('', '/s', '%', '×') else ' '}{unit}"


def interval(figure: Figure | None) -> str:
    """The 95% interval in the figure's own scale, without the unit."""
    if figure is None or figure.ci95 is None:
        return ""
    scale, _ = scaled(figure)
    return span(figure.ci95[0] * scale, figure.ci95[1] * scale)


def estimated(figure: Figure | None) -> bool:
    return figure is not None and not figure.source.startswith("measured")


def gain(goal: Goal) -> str:
    """What a ratio above 1 means for this goal, so that `5.48× ` can stand before it."""
    return _GAIN.get(goal.figure, "better")


def metric_value(quality: Quality, figure: Figure | None = None) -> str:
    """A metric between 0 and 1 as it is written in papers, 93.4%; anything else as a number."""
    figure = figure or quality.value
    if quality.metric in ("accuracy", "top5", "balanced_accuracy", "top1-agreement", "f1", "precision", "recall"):
        return f"{figure.value * 100:.2f}%" if abs(figure.value) <= 1 else f"{figure.value:.2f}%"
    return number(figure.value, 4)


def drop_text(figure: Figure) -> str:
    """A drop with its sign turned into a word-free number: 0.13 pt, or −0.05 pt where the variant is better."""
    text = number(figure.value, 2)
    return f"{text}{'' if figure.unit == '%' else ' '}{figure.unit}"


def most(quality: Quality) -> str:
    """What the drop is at most with 95% confidence (one-sided), which the verdict rests on; else its interval."""
    if quality.bound is not None:
        return f"at most {drop_text(replace(quality.drop, value=quality.bound))}"
    spread = interval(quality.drop)
    return f"95% interval {spread}" if spread else ""


def metric_name(name: str) -> str:
    """A metric in words; of a function of the user's, its own name."""
    return {
        "top1-agreement": "top-1 agreement with the original model",
        "cosine": "mean cosine to the original model's outputs",
        "normalised-error": "normalised error against the original model",
    }.get(name, name.rpartition(":")[2].replace("_", " "))


def runtime_words(trial: Trial) -> str:
    """`OpenVINO bf16`, for a sentence."""
    name = str(trial.recipe.runtime.get("name", ""))
    pretty = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}.get(name, name)
    precision = str(trial.recipe.runtime.get("precision", ""))
    return " ".join(part for part in (pretty, precision) if part)


def count(number_of: int, one: str, many: str | None = None) -> str:
    return f"{number_of:,} {one if number_of == 1 else many or one + 's'}"
