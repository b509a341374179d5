"""The story of a study: its headline and the three sentences that say what was brought, what it became and its cost."""

from __future__ import annotations

from hasten.measurement import Figure, Quality, Trial
from hasten.report.html import Markup, el, markup
from hasten.report.words import (
    count,
    drop_text,
    gain,
    metric_name,
    metric_value,
    most,
    number,
    runtime_words,
    say,
    times,
    times_interval,
)
from hasten.study import Study


def improved(study: Study) -> Trial | None:
    """The best trial where it is not simply the model as brought."""
    best = study.best
    return None if best is None or best.origin == "brought" else best


def within(quality: Quality, study: Study) -> bool:
    """Whether the drop is shown to be within what the goal allows."""
    upper = quality.drop.value if quality.bound is None else quality.bound
    return upper <= study.goal.max_drop.amount


def headline(study: Study) -> Markup:
    best = improved(study)
    if best is None:
        if study.best is not None:
            return Markup("Nothing beat the model as it was brought.")
        return markup("No choice yet." if study.trials else "Nothing has been tried yet.")
    if best.speedup is None:
        return markup(f"{best.recipe.describe()} was chosen.")
    quality = best.measurement.quality
    tail = "."
    if quality is not None and within(quality, study):
        name = metric_name(quality.metric) if quality.kind == "labels" else "fidelity"
        tail = f", {name} held."
    return markup([el("em", times(best.speedup.value)), f" {gain(study.goal)}{tail}"])


def story(study: Study) -> list[Markup]:
    """Three sentences, each a paragraph's worth of plain text with its figures."""
    return [sentence for sentence in (_brought(study), _became(study), _costs(study)) if sentence]


def _brought(study: Study) -> Markup:
    model, facts = study.workload.model, study.workload.model.facts
    size = say(Figure(facts.size_bytes / 1e6, "MB", "measured"))
    parameters = f"{number(facts.parameters / 1e6)} million" if facts.parameters >= 1e5 else f"{facts.parameters:,}"
    what = f" ({parameters} parameters, {size}"
    what += f", opset {facts.opset})" if facts.opset else ")"
    cores = f" on {count(len(study.device.cpus), 'core')} of {study.device.name}" if study.device.cpus else ""
    baseline = study.baseline
    figure = baseline.measurement.figures.get(study.goal.figure) if baseline else None
    does = "was brought"
    if baseline is not None and figure is not None:
        does = f"{_does(study, figure)} in {runtime_words(baseline)} as it was brought"
    return markup([el("strong", model.path.name), what, f" {does}{cores}."])


def _does(study: Study, figure: Figure) -> str:
    name = study.goal.figure
    verb = {
        "throughput_per_s": f"answers {number(figure.value)} samples a second",
        "latency_ms.p50": f"answers in {say(figure)} (median)",
        "latency_ms.p99": f"answers within {say(figure)} in 99 of 100 cases",
        "peak_memory_mb": f"takes {say(figure)} of memory",
        "size_mb": f"takes {say(figure)} on disk",
        "energy_j_per_inference": f"uses {say(figure)} an inference",
        "cost_per_million": f"costs {say(figure)} for a million inferences",
    }
    return verb.get(name, say(figure))


def _became(study: Study) -> Markup:
    proposed = [trial for trial in study.trials if trial.origin == "search"]
    tried = sum(trial.speedup is not None or trial.seconds_spent > 0 for trial in proposed)
    best, figure = improved(study), None
    if best is None:
        if study.best is None:
            return markup(f"{count(tried, 'recipe')} {'was' if tried == 1 else 'were'} tried, and none is chosen yet.")
        if proposed and not tried:
            none = f"No recipe could be tried within the budget ({len(proposed)} proposed)"
            return markup(f"{none}, so the model ships as it is.")
        return markup(
            f"Of {count(tried, 'recipe')} tried, none was shown to be better with quality held, so the model ships "
            "as it is; the table below says why each one lost."
        )
    figure = best.measurement.figures.get(study.goal.figure)
    now = f" it {_does(study, figure)}," if figure is not None else ""
    ratio: list[str | Markup] = []
    if best.speedup is not None:
        ratio = [" ", el("strong", f"{times(best.speedup.value)} {gain(study.goal)}")]
        spread = times_interval(best.speedup)
        ratio += [f" (95% interval {spread})"] if spread else []
    tail = f", chosen from {count(tried, 'recipe')}" if tried > 1 else ""
    return markup(["As ", el("code", best.recipe.describe()), f"{now}", *ratio, f"{tail}."])


def _costs(study: Study) -> Markup:
    best = improved(study)
    if best is None:
        return Markup("")
    quality = best.measurement.quality
    if quality is None:
        return markup("Its quality was not measured.")
    lost = quality.drop.value > 0
    cost = drop_text(quality.drop) if lost else "nothing measurable"
    bounded = most(quality)
    details = [
        "" if lost else drop_text(quality.drop),
        bounded if quality.bound is None else f"with 95% confidence {bounded}",
        f"{study.goal.max_drop} allowed",
    ]
    inside = f" ({', '.join(filter(None, details))})"
    name, value = metric_name(quality.metric), metric_value(quality)
    if quality.kind == "labels":
        on = count(quality.samples, "labelled sample")
        return markup(["It costs ", el("strong", cost), f" in {name}{inside}: {value} on {on}."])
    on = count(quality.samples, "sample")
    return markup(
        [
            f"Without labels, quality is fidelity: {name} is ",
            el("strong", value),
            f" on {on}, a cost of {cost}{inside}.",
        ]
    )
