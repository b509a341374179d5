"""The words of a study's answer: why the winner won, why each other trial did not, and which trials nothing beats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hasten.goal import HIGHER_IS_BETTER, Goal
from hasten.measure.statistics import pareto
from hasten.measurement import Trial
from hasten.study import Study


def why(winner: Trial, goal: Goal) -> str:
    """What makes a confirmed winner the choice, in a sentence."""
    speedup = winner.speedup
    if speedup is None or speedup.ci95 is None:
        return ""
    quality = winner.measurement.quality
    low, high = speedup.ci95
    name = goal.optimise
    text = f"{speedup.value:.2f}x better {name} than the model as brought (95% interval {low:.2f} to {high:.2f})"
    text += reused(winner)
    if quality is None:
        return text
    drop, metric = quality.drop, quality.metric.rpartition(":")[2]
    if drop.value == 0:
        text += f", {metric} unchanged"
    else:
        worse = drop.value > 0
        # Of a metric that is better when lower, worse is up.
        risen = not worse if quality.beside is None else quality.value.value > quality.beside
        word = "up" if risen else "down"
        text += f", {metric} {word} by {abs(drop.value):.2g} {drop.unit}"
    if quality.bound is not None:
        text += f" (at most {max(0.0, quality.bound):.2g} {drop.unit} with 95% confidence, allowed {goal.max_drop})"
    return f"{text}, confirmed on {quality.samples} samples that took no part in choosing it"


def reused(trial: Trial) -> str:
    """What of its answers was not computed anew, as the rest of a sentence; empty where all was."""
    figures = trial.measurement.figures
    words = {
        "cache_hit_rate": "{:.0f}% of answers came from the cache",
        "similar_rate": "{:.0f}% of answers came from similar inputs",
        "prefix_hit_rate": "{:.0f}% of prompts was not read again",
    }
    return "".join(f", {text.format(figures[name].value)}" for name, text in words.items() if name in figures)


def explained(trials: Sequence[Trial], best: Trial | None) -> list[Trial]:
    """The same trials, in order, with a reason for each that passed and was not chosen."""

    def told(trial: Trial) -> Trial:
        if trial.status != "ok" or trial.origin == "brought" or trial.speedup is None:
            return trial
        if best is None or trial.id == best.id:
            return replace(trial, reason="") if trial.reason else trial
        own = trial.speedup.value
        if best.speedup is not None and best.origin != "brought":
            gap = f"{own:.2f}x beside {best.speedup.value:.2f}x"
            reason = f"slower than the choice: {gap}" if own <= best.speedup.value else f"not confirmed: {gap}"
        else:
            low, high = trial.speedup.ci95 or (own, own)
            shown = f"{own:.2f}x, 95% interval {low:.2f} to {high:.2f}"
            reason = f"not confirmed: {shown}" if own > 1 else f"not faster than the model as brought: {shown}"
        return trial if reason == trial.reason else replace(trial, reason=reason)

    return [told(trial) for trial in trials]


def fallback(study: Study) -> Trial | None:
    """What to ship beside the answer for machines that lack its runtime: the quickest trial that held on another.

    That is the model as brought where nothing better ran there; None where all ran on the answer's own runtime.
    """
    best = study.best
    if best is None:
        return None
    own = best.recipe.runtime.get("name")
    others = [
        trial
        for trial in study.trials
        if trial.status == "ok" and trial.speedup is not None and trial.recipe.runtime.get("name") != own
    ]
    brought = [t for t in study.trials if t.origin == "brought" and t.recipe.runtime.get("name") != own]
    sound = [t for t in others if t.speedup is not None and t.speedup.value >= 1]
    return max(sound, key=lambda t: 0.0 if t.speedup is None else t.speedup.value, default=next(iter(brought), None))


def unchanged(trial: Trial) -> bool:
    """Whether screening found the outputs of the model as brought, to within rounding."""
    quality = trial.measurement.quality
    return quality is not None and quality.drop.ci95 == (0.0, 0.0)


def front(trials: Sequence[Trial], figure: str) -> list[str]:
    """Ids of the trials that no other beats in the goal's figure, peak memory, size and quality drop together."""
    names = list(dict.fromkeys([figure, "peak_memory_mb", "size_mb"]))
    rows, ids = [], []
    for trial in trials:
        figures = trial.measurement.figures
        if not all(name in figures for name in names):
            continue
        drop = 0.0 if trial.measurement.quality is None else trial.measurement.quality.drop.value
        rows.append([*(figures[name].value for name in names), drop])
        ids.append(trial.id)
    directions = [name in HIGHER_IS_BETTER for name in names] + [False]
    return [ids[i] for i in pareto(rows, directions)]
