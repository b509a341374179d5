"""What quality costs: the drop of each trial with its interval, on one axis beside what is allowed."""

from __future__ import annotations

from hasten.measurement import Trial
from hasten.recipe import Recipe
from hasten.report.html import Markup, el
from hasten.report.strip import Mark, strip
from hasten.report.words import count, drop_text, metric_name, metric_value, most
from hasten.study import Study

MOST_ROWS = 10


def judged(study: Study) -> list[Trial]:
    """The trials whose quality was measured and is worth a look: the choice, the Pareto set, and the largest drops."""
    with_quality = [t for t in study.trials if t.measurement.quality is not None and t.origin != "brought"]
    # Variants that differ only in how they are executed give the same outputs: one of them is enough.
    unequal: dict[Recipe, Trial] = {}
    for trial in sorted(with_quality, key=lambda t: t.id != study.best_id):
        plain = {key: value for key, value in trial.recipe.runtime.items() if key in ("name", "precision")}
        unequal.setdefault(Recipe(trial.recipe.steps, plain), trial)

    def weight(trial: Trial) -> tuple[int, float]:
        quality = trial.measurement.quality
        drop = abs(quality.drop.value) if quality else 0.0
        return (0 if trial.id == study.best_id else 1 if trial.id in study.pareto else 2), -drop

    chosen = sorted(unequal.values(), key=weight)[:MOST_ROWS]
    return sorted(chosen, key=lambda t: t.measurement.quality.drop.value if t.measurement.quality else 0.0)


def quality_section(study: Study) -> Markup | None:
    trials = judged(study)
    if not trials:
        return None
    allowed = study.goal.max_drop.amount
    lows = [_range(trial)[0] for trial in trials]
    low = min(0.0, *lows) if lows else 0.0
    high = max(allowed * 2.2, 0.2 * abs(low)) or max(_range(trial)[1] for trial in trials) or 1.0
    domain = (min(low, -0.15 * high) * 1.1, high)
    rows = [_row(trial, study, domain, allowed) for trial in trials]
    return el("div", rows, _axis(domain, allowed, study), class_="drops")


def _range(trial: Trial) -> tuple[float, float]:
    """From the low end of the drop's interval to the bound that the verdict rests on."""
    quality = trial.measurement.quality
    if quality is None:
        return 0.0, 0.0
    low, high = quality.drop.ci95 or (quality.drop.value, quality.drop.value)
    return low, high if quality.bound is None else quality.bound


def _row(trial: Trial, study: Study, domain: tuple[float, float], allowed: float) -> Markup:
    quality = trial.measurement.quality
    assert quality is not None
    low, high = _range(trial)
    kind = "chosen" if trial.id == study.best_id else "bad" if low > allowed else "unsure" if high > allowed else ""
    spread = most(quality)
    return el(
        "div",
        el("span", el("code", trial.recipe.describe() or "no change"), class_="name"),
        strip(domain, [Mark(quality.drop.value, low, high, kind)], rule=0.0, limit=allowed),
        el(
            "span",
            el("b", drop_text(quality.drop)),
            el("small", spread) if spread else None,
            class_="num",
            title=f"{metric_name(quality.metric)} {metric_value(quality)}",
        ),
        class_="chosen" if trial.id == study.best_id else None,
    )


def _axis(domain: tuple[float, float], allowed: float, study: Study) -> Markup:
    low, high = domain
    zero, limit = (100 * (x - low) / (high - low) for x in (0.0, allowed))
    labels = [el("text", "no change", x=f"{zero:.2f}%", y=12, text_anchor="middle")]
    if allowed > 0:
        labels.append(el("text", f"{study.goal.max_drop} allowed", x=f"{limit:.2f}%", y=12, text_anchor="middle"))
    return el(
        "div",
        el("span"),
        el("svg", labels, class_="axis", height=16, aria_hidden="true"),
        el("span"),
        class_="scale",
    )


def quality_words(study: Study) -> str:
    """How quality was judged, in a sentence or two."""
    best = study.best if study.best is not None and study.best.measurement.quality is not None else None
    trial = best or next((t for t in study.trials if t.measurement.quality is not None), None)
    if trial is None or trial.measurement.quality is None:
        return "Quality was not measured in this study."
    quality = trial.measurement.quality
    name = metric_name(quality.metric)
    judged_by = "the labels" if quality.kind == "labels" else "the original model's own outputs, as there are no labels"
    drop = study.goal.max_drop
    amount = f"{drop.amount:g} {'points' if drop.unit == 'pt' else 'per cent of the original value'}"
    return (
        f"Judged by {judged_by}: {name} on {count(quality.samples, 'sample')}, each variant beside the original on the "
        f"same samples. A variant passes only if its drop is, with 95% confidence, at most {amount}."
    )
