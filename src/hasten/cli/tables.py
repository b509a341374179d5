"""The tables that answer a command, within 100 columns and, with less in them, within 80."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich import box
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hasten.cli import cells
from hasten.measurement import Figure, Measurement, Trial
from hasten.report.words import LABELS, gain, interval, say
from hasten.study import Study
from hasten.view.number import microseconds, percent, ratio, short, size

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hasten.api import Bench, ProfileReport
    from hasten.diagnose.doctor import Doctor, LeverRow, RuntimeRow
    from hasten.lab.compare import Comparison
    from hasten.lab.store import Entry
    from hasten.levers import Proposal

WIDE = 96
"""With fewer columns than this, energy and cost are left to --json."""
OPERATORS = 12
MOST_REASONS = 12


def light(**options: Any) -> Table:
    """A table with one rule under its head and air between its columns."""
    return Table(
        box=box.SIMPLE_HEAD, header_style="dim", pad_edge=False, padding=(0, 1, 0, 0), show_edge=False, **options
    )


def sentence(text: str, style: str = "") -> Padding:
    """Prose under a table, set in from the left."""
    return Padding(Text(text, style=style), (0, 0, 0, 2), expand=False)


def heading(text: str) -> Text:
    return Text(f"\n{text}", style="bold")


# -- a study ----------------------------------------------------------------------------------------------------------


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
    table = light(expand=False)
    table.add_column("", width=1)
    table.add_column("Recipe", min_width=24 if width >= WIDE else 20, overflow="fold")
    for title in ("Speed-up", "95%\ninterval", "Quality", "Drop", "Memory\nMB", "Size\nMB"):
        table.add_column(title, justify="right", no_wrap=True)
    if width >= WIDE:
        table.add_column(f"Energy\n{'mJ' if milli else 'J'}", justify="right", no_wrap=True)
        table.add_column("Cost/1M\n$", justify="right", no_wrap=True)
    for trial in rows:
        figures = trial.measurement.figures
        row: list[RenderableType] = [
            cells.mark(trial, study),
            cells.name(trial, "\n"),
            cells.speedup(trial),
            cells.interval(trial.speedup),
            cells.quality(trial),
            cells.drop(trial),
            cells.number(figures.get("peak_memory_mb")),
            cells.number(figures.get("size_mb")),
        ]
        if width >= WIDE:
            row.append(cells.number(figures.get("energy_j_per_inference"), 1e3 if milli else 1.0))
            row.append(cells.number(figures.get("cost_per_million")))
        table.add_row(*row, style=_style(trial, study))
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
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(width=0)
        table.add_column(ratio=2, overflow="fold")
        table.add_column(ratio=3, style="dim", overflow="fold")
        for trial in lost[:MOST_REASONS]:
            table.add_row("", trial.recipe.describe(), trial.reason or trial.status)
        yield table
        if len(lost) > MOST_REASONS:
            yield sentence(f"and {len(lost) - MOST_REASONS} more: in the report", "dim")
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
        yield sentence(study.why[:1].upper() + study.why[1:] + ".")


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


def notes(said: Sequence[str]) -> Iterator[RenderableType]:
    if said:
        yield heading("Notes")
        table = Table.grid(padding=(0, 1, 0, 0))
        table.add_column(style="dim", width=3, justify="right")
        table.add_column()
        for note in said:
            table.add_row("·", note)
        yield table


def proposals_table(proposals: Sequence[Proposal]) -> Table:
    table = light(expand=True)
    table.add_column("Lever", no_wrap=True)
    table.add_column("Predicted", justify="right", no_wrap=True)
    table.add_column("Recipe", ratio=2, overflow="fold")
    table.add_column("Why", ratio=3, style="dim", overflow="fold")
    for each in proposals:
        table.add_row(each.lever, ratio(each.gain.factor), each.recipe.describe(), each.why)
    return table


# -- one measurement --------------------------------------------------------------------------------------------------


def figures_table(measurements: dict[str, Measurement]) -> Table:
    """Figures down, subjects across; with one subject also where each figure came from."""
    alone = len(measurements) == 1
    table = light()
    table.add_column("Figure", no_wrap=True)
    for name in measurements:
        table.add_column("" if alone else name, justify="right", overflow="fold")
        table.add_column("95% interval", justify="right", no_wrap=True, style="dim")
    if alone:
        table.add_column("Source", style="dim", overflow="fold")
    for key, label in LABELS.items():
        found = [m.figures.get(key) for m in measurements.values()]
        if not any(found):
            continue
        row = [label]
        for figure in found:
            row += [say(figure), interval(figure)]
        if alone and found[0] is not None:
            row.append(found[0].source)
        table.add_row(*row)
    return table


def bench_report(bench: Bench) -> Iterator[RenderableType]:
    load = f"{bench.queries:,} queries in {bench.seconds:.1f} s"
    yield Text(f"{bench.subject} · {bench.scenario} · {bench.recipe.describe()} · {load}", style="dim")
    yield Text("")
    yield figures_table({bench.subject: bench.measurement})
    if not bench.valid:
        yield sentence("LoadGen calls this run INVALID: too few queries, or a bound was missed.", "yellow")
    yield from notes(bench.notes)


def comparison_report(found: Comparison) -> Iterator[RenderableType]:
    yield Text("")
    yield figures_table(dict(found.measurements))
    lines = found.words()
    yield heading("Verdict")
    for place, line in enumerate(lines):
        yield sentence(line, "bold" if place == 0 else "")


# -- where the time goes ----------------------------------------------------------------------------------------------


def profile_report(found: ProfileReport, width: int) -> Iterator[RenderableType]:
    profile = found.profile
    name = profile.model or "model"
    yield Text(f"{name} · {profile.recipe.describe()} · {microseconds(profile.wall_us.value)} a run", style="dim")
    yield Text("")
    yield operators_table(profile.rows, width)
    if len(profile.rows) > OPERATORS:
        rest = sum(row.share for row in profile.rows[OPERATORS:])
        yield sentence(f"and {len(profile.rows) - OPERATORS} more operators with {percent(rest)} of the time", "dim")
    yield heading("In words")
    for line in found.words():
        yield sentence(line)


def operators_table(rows: Sequence[Any], width: int) -> Table:
    """The operators that take most of the time, each beside the roof that applies to it."""
    table = light()
    table.add_column("Operator", overflow="ellipsis", no_wrap=True, max_width=34 if width >= WIDE else 20)
    table.add_column("Kind", no_wrap=True, overflow="ellipsis", max_width=18 if width >= WIDE else 12)
    table.add_column("Time", justify="right", no_wrap=True)
    table.add_column("Share", justify="right", no_wrap=True)
    table.add_column("Reached", justify="right", no_wrap=True)
    table.add_column("Of its roof", justify="right", no_wrap=True)
    table.add_column("Bound by", no_wrap=True)
    for row in rows[:OPERATORS]:
        reached = row.gflops if row.by == "compute" else row.gb_s if row.by == "memory" else None
        unit = row.roof_unit or ("GFLOP/s" if row.by == "compute" else "GB/s")
        table.add_row(
            row.name,
            row.kind,
            microseconds(row.microseconds),
            percent(row.share),
            "–" if reached is None else f"{short(reached)} {unit}",
            percent(row.fraction),
            row.by,
        )
    return table


def limits_table(limits: dict[str, Figure]) -> Table:
    labels = {
        "gemm_fp32_gflops": "GEMM fp32",
        "gemm_bf16_gflops": "GEMM bf16",
        "gemm_fp16_gflops": "GEMM fp16",
        "gemm_int8_gops": "GEMM int8",
        "read_gb_s": "Memory, read",
        "copy_gb_s": "Memory, copy",
        "cache_gb_s": "Level 2 cache",
        "dispatch_us": "One operator, alone",
        "operator_us": "One more operator",
    }
    table = light()
    table.add_column("Limit", no_wrap=True)
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("95% interval", justify="right", no_wrap=True, style="dim")
    table.add_column("Source", style="dim", overflow="fold")
    for key, figure in limits.items():
        table.add_row(labels.get(key, key), say(figure), interval(figure), figure.source.removeprefix("measured: "))
    return table


def next_steps(steps: Sequence[tuple[str, str]]) -> RenderableType:
    """Where things are and what to run now. The lines can be copied: they are never wrapped."""
    table = Table.grid(padding=(0, 2, 0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(no_wrap=True, overflow="ignore")
    for name, text in steps:
        table.add_row(name, text)
    return Padding(table, (1, 0, 0, 0), expand=False)


def studies_table(entries: Sequence[Entry], now: float) -> Table:
    table = light()
    for title in ("Study", "Touched", "Model", "Goal", "Trials", "Outcome"):
        table.add_column(
            title,
            justify="right" if title in ("Touched", "Trials") else "left",
            no_wrap=title != "Outcome",
            overflow="ellipsis",
        )
    for entry in entries:
        header = entry.header
        table.add_row(
            entry.key[:12],
            ago(now - entry.updated),
            header["workload"]["model"]["path"].rsplit("/", 1)[-1],
            header["goal"]["optimise"],
            str(entry.trials),
            header["why"] or "unfinished",
        )
    return table


def ago(seconds: float) -> str:
    """How long ago, in one unit."""
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= length:
            return f"{int(seconds // length)} {unit} ago"
    return "just now"


def doctor_report(found: Doctor) -> Iterator[RenderableType]:
    """The device and its limits, the runtimes, the levers, and how energy will be found."""
    device = found.device
    caches = ", ".join(f"{name} {size(amount)}" for name, amount in device.caches_bytes.items())
    facts = Table.grid(padding=(0, 2, 0, 0))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    cores = len(device.cpus)
    facts.add_row("Device", f"{device.name}, {cores} core{'s' if cores != 1 else ''} may be used")
    facts.add_row("Memory", f"{size(device.memory_bytes)}, caches {caches}")
    facts.add_row("Energy", ("measured: " if found.energy_measured else "") + found.energy)
    facts.add_row("System", f"{found.system}, Python {found.python}")
    yield facts
    yield heading("Limits")
    yield limits_table(dict(device.limits))
    yield heading("Runtimes")
    yield _plugins(
        ("Runtime", "Version", "Takes", "Precisions"),
        [
            (
                row,
                [row.version, ", ".join(row.accepts), ", ".join(row.precisions)],
            )
            for row in found.runtimes
        ],
    )
    yield heading("Levers")
    yield _plugins(("Lever", "Needs"), [(row, [", ".join(row.needs) or "nothing"]) for row in found.levers])
    commands = [(row.name, row.command) for row in found.runtimes if row.command and not row.usable]
    if commands:
        yield heading("How to get the others")
        yield next_steps(commands)
    yield from notes(found.notes)


def _plugins(titles: Sequence[str], rows: Sequence[tuple[RuntimeRow | LeverRow, list[str]]]) -> Table:
    """Plugins of one kind; whoever is not hasten's own is named, and what cannot be used says why."""
    table = light()
    table.add_column("", width=1)
    for title in titles:
        table.add_column(title, overflow="fold")
    table.add_column("", style="dim", overflow="fold")
    for row, cells_ in rows:
        said = [row.reason] if not row.usable else []
        said += [f"from {row.package}"] if row.package not in ("hasten", "") else []
        mark = Text("✓", style="green") if row.usable else Text("✗", style="red")
        table.add_row(mark, row.name, *cells_, "; ".join(said))
    return table
