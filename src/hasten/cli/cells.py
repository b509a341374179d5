"""What a table's cell says about a trial: its recipe, its speed-up, its quality, and how it ended."""

from __future__ import annotations

from dataclasses import replace

from rich.text import Text

from hasten.measurement import Figure, Trial
from hasten.report.words import drop_text, metric_value
from hasten.study import Study
from hasten.view.number import ratio, short

ROLE = {"brought": "as brought", "full-precision": "full precision"}
STYLE = {"ok": "", "rejected": "dim", "undecided": "yellow", "failed": "red"}
NOT_TRIED = "not tried"
CHOSEN, PARETO = "●", "◇"


def tried(trial: Trial) -> bool:
    """Whether anything was run for it; the others were only proposed."""
    return not (trial.status == "rejected" and trial.reason.startswith(NOT_TRIED) and trial.speedup is None)


def order(trial: Trial) -> tuple[int, float]:
    """Best on top: what holds, then what is undecided, rejected, failed; the quicker first."""
    place = {"ok": 0, "undecided": 1, "rejected": 2, "failed": 3}[trial.status]
    return place, -(trial.speedup.value if trial.speedup else 0.0)


def name(trial: Trial, width: int | None = None) -> Text:
    """The recipe, and whether it is an honest baseline; with `width`, broken between its parts rather than in them."""
    role = ROLE.get(trial.origin, "")
    lines = broken(trial.recipe.describe() or "no change", width)
    text = Text("\n".join(lines))
    if role:
        apart = "\n" if width is not None and len(lines[-1]) + 2 + len(role) > width else "  "
        text.append(apart + role, style="cyan")
    return text


def broken(recipe: str, width: int | None) -> list[str]:
    """Lines of at most `width` characters, broken before a bar where that is possible."""
    if width is None:
        return [recipe]
    lines = [""]
    for part in recipe.split(" | "):
        joined = f"{lines[-1]} | {part}" if lines[-1] else part
        if lines[-1] and len(joined) > width:
            lines.append(f"| {part}")
        else:
            lines[-1] = joined
    return lines


def mark(trial: Trial, study: Study) -> Text:
    if trial.id == study.best_id:
        return Text(CHOSEN, style="bold green")
    return Text(PARETO, style="cyan") if trial.id in study.pareto else Text("")


def speedup(trial: Trial) -> str:
    return ratio(trial.speedup.value) if trial.speedup else "failed" if trial.status == "failed" else "–"


def interval(figure: Figure | None) -> str:
    """A speed-up's `5.31–5.66`; nothing where the interval is a point."""
    if figure is None or figure.ci95 is None or figure.ci95[0] == figure.ci95[1]:
        return ""
    low, high = (f"{end:.2f}" if end < 100 else short(end) for end in figure.ci95)
    return f"{low}–{high}"


def quality(trial: Trial, baseline: Trial | None) -> str:
    """The metric, on the samples that the baseline's was taken on, so that one column compares.

    A trial judged on other samples shows the baseline's value moved by the difference on those that both ran (the
    difference estimator of survey sampling; Cochran, Sampling Techniques, 1977, chapter 7), after ~ as an estimate.
    """
    found = trial.measurement.quality
    whole = baseline.measurement.quality if baseline is not None else None
    if found is None:
        return "–"
    if whole is None or found.beside is None or found.beside == whole.value.value:
        return metric_value(found)
    return "~" + metric_value(found, replace(found.value, value=whole.value.value + found.value.value - found.beside))


def drop(trial: Trial) -> str:
    found = trial.measurement.quality
    return "–" if found is None else drop_text(found.drop)


def number(figure: Figure | None, factor: float = 1.0) -> str:
    """The value, after ~ where it is an estimate or was published."""
    if figure is None:
        return "–"
    return ("" if figure.source.startswith("measured") else "~") + short(figure.value * factor)


def status(trial: Trial) -> Text:
    """How it ended and why."""
    word = "confirmed" if trial.final and trial.status == "ok" and trial.origin == "search" else trial.status
    text = Text(word, style="green" if trial.status == "ok" else STYLE[trial.status])
    if trial.reason and trial.reason != "the model as brought":
        text.append(f"  {trial.reason}", style="dim")
    return text
