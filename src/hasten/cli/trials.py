"""A finished study for people: all trials, the Pareto set, why the others lost, the choice, and what bounds it now."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hasten.cli import cells
from hasten.cli.tables import WIDE, heading, light, notes, sentence
from hasten.measurement import Trial
from hasten.report.words import gain
from hasten.study import Study
from hasten.view.number import ratio

if TYPE_CHECKING:
    from rich.console import RenderableType

RATES = {"cache_hit_rate": "Cached\n%", "similar_rate": "Similar\n%", "prefix_hit_rate": "Not read\nagain %"}
MOST_REASONS = 12
NARROWEST = 18
GAP = 2


def study_report(study: Study, width: int) -> Iterator[RenderableType]:
    """Everything a person wants of a finished study: all trials, the Pareto set, the choice and why, the notes."""
    yield Text(subject(study), style="dim")
    yield Text("")
    yield trials_table(study, width)
    yield from _legend(study, width)
    yield from _lost(study)
    yield from choice(study)
    yield from _bounds(study)
    yield from notes(study.notes)


def subject(study: Study) -> str:
    """What was made faster, for what, and where."""
    work, goal = study.workload, study.goal
    where = "".join(f" · {constraint.text}" for constraint in goal.where)
    samples = f"{work.samples.count:,} {'made-up samples' if work.samples.kind == 'synthetic' else 'samples'}"
    cores = len(study.device.cpus)
    return (
        f"{work.model.path.name} · {samples} · {work.scenario} · goal: {goal.optimise}{where} · "
        f"{work.metric} may drop {goal.max_drop} · {cores} core{'s' if cores != 1 else ''} of {study.device.name}"
    )


def trials_table(study: Study, width: int) -> Table:
    """All measured trials, the best on top; ~ marks an estimate."""
    rows = sorted((t for t in study.trials if cells.tried(t)), key=lambda t: (t.id != study.best_id, *cells.order(t)))
    energies = [f.value for t in rows if (f := t.measurement.figures.get("energy_j_per_inference"))]
    milli = bool(energies) and max(energies) < 1
    columns: list[tuple[str, Callable[[Trial], str]]] = [
        ("Speed-up", cells.speedup),
        ("95%\ninterval", lambda t: cells.interval(t.speedup)),
        ("Quality", lambda t: cells.quality(t, study.baseline)),
        ("Drop", cells.drop),
        ("Memory\nMB", lambda t: cells.number(t.measurement.figures.get("peak_memory_mb"))),
        ("Size\nMB", lambda t: cells.number(t.measurement.figures.get("size_mb"))),
    ]
    figures = [t.measurement.figures for t in rows]
    rates = [(name, head) for name, head in RATES.items() if any(name in each for each in figures)]
    for name, head in rates:
        columns.append((head, lambda t, name=name: cells.number(t.measurement.figures.get(name))))  # type: ignore[misc]
    if width >= WIDE:
        unit, factor = ("mJ", 1e3) if milli else ("J", 1.0)
        energy, cost = "energy_j_per_inference", "cost_per_million"
        columns.append((f"Energy\n{unit}", lambda t: cells.number(t.measurement.figures.get(energy), factor)))
        columns.append(("Cost/1M\n$", lambda t: cells.number(t.measurement.figures.get(cost))))
    texts = [[write(trial) for _, write in columns] for trial in rows]
    widths = [
        max([*map(len, title.split("\n")), *(len(row[place]) for row in texts)])
        for place, (title, _) in enumerate(columns)
    ]
    room = max(NARROWEST, width - len(cells.CHOSEN) - GAP - sum(used + GAP for used in widths))
    table = light()
    table.add_column("", width=1)
    table.add_column("Recipe", overflow="fold", max_width=room)
    for title, _ in columns:
        table.add_column(title, justify="right", no_wrap=True)
    for trial, row in zip(rows, texts, strict=True):
        table.add_row(cells.mark(trial, study), cells.name(trial, room), *row, style=_style(trial, study))
    return table


def _style(trial: Trial, study: Study) -> str:
    if trial.id == study.best_id:
        return "bold"
    return "dim" if trial.status in ("rejected", "failed") else ""


def _legend(study: Study, width: int) -> Iterator[RenderableType]:
    """What the marks mean, and what was left out."""
    parts = [f"{cells.CHOSEN} chosen"]
    if len(study.pareto) > (study.best_id in study.pareto):
        parts.append(
            f"{cells.PARETO} Pareto set: nothing else is better in {study.goal.optimise}, memory, size and quality"
        )
    measured = [f for t in study.trials for f in t.measurement.figures.values()]
    if any(not figure.source.startswith("measured") for figure in measured):
        parts.append("~ estimated")
    if width < WIDE:
        parts.append("energy and cost: in a wider terminal")
    yield Text("")
    yield sentence(" · ".join(parts), "dim")


def _lost(study: Study) -> Iterator[RenderableType]:
    """Why each of the others lost, and how many were not worth the time."""
    lost = sorted((t for t in study.trials if cells.tried(t) and t.status != "ok"), key=cells.order)
    if lost:
        yield heading("Why the others lost")
        by_reason: dict[str, list[str]] = {}
        for trial in lost:
            by_reason.setdefault(trial.reason or trial.status, []).append(trial.recipe.describe() or "no change")
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(width=0)
        table.add_column(ratio=2, overflow="fold")
        table.add_column(ratio=3, style="dim", overflow="fold")
        for reason, names in list(by_reason.items())[:MOST_REASONS]:
            table.add_row("", "\n".join(names), reason)
        yield table
        if len(by_reason) > MOST_REASONS:
            yield sentence(f"and {len(by_reason) - MOST_REASONS} more reasons: in the report", "dim")
    untried: dict[str, int] = {}
    for trial in study.trials:
        if not cells.tried(trial):
            reason = trial.reason.removeprefix(cells.NOT_TRIED).strip(": ") or "the search ended before"
            reason = "predicted to be slower than what was reached" if reason.startswith("predicted") else reason
            untried[reason] = untried.get(reason, 0) + 1
    if untried:
        counted = "; ".join(f"{amount} because {reason}" for reason, amount in untried.items())
        counted = counted.replace("because predicted", "predicted")
        yield Text("")
        yield sentence(f"Not tried: {counted}.", "dim")


def choice(study: Study) -> Iterator[RenderableType]:
    best = study.best
    yield heading("Chosen")
    if best is None:
        yield sentence(study.why or "nothing was measured")
        return
    name = best.recipe.describe() or "no change"
    shown = Text.assemble((name, "bold green" if best.origin != "brought" else "bold"))
    if best.speedup is not None and best.origin != "brought":
        shown.append(f"   {ratio(best.speedup.value)} {gain(study.goal)}", style="bold")
    yield Padding(shown, (0, 0, 0, 2), expand=False)
    if study.why:
        yield sentence(study.why[:1].upper() + study.why[1:].rstrip(".") + ".")


def _bounds(study: Study) -> Iterator[RenderableType]:
    """What bounds the winner now, as a fraction of the device's limit, where it was profiled."""
    from hasten.report.profiles import read

    profile = read(study.profiles.get("after"))
    if profile is None:
        return
    yield heading("What bounds it now")
    for words in profile.words():
        if words not in profile.notes:
            yield sentence(words)
