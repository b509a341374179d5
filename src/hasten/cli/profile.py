"""`hasten profile`: where the time goes."""

from __future__ import annotations

import json as json_format
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from hasten import api
from hasten.cli import options
from hasten.cli.screen import Screen
from hasten.cli.tables import WIDE, heading, light, sentence
from hasten.errors import Failed, InvalidInput
from hasten.view.number import microseconds, percent, short

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hasten.diagnose.rows import OperatorRow

OPERATORS = 12
EXPORTS = {"chrome-trace": ".trace.json", "roofline": ".roofline.svg"}


def command(
    model: options.Subject,
    data: options.Data = None,
    label: options.Label = None,
    output: options.ModelOutput = None,
    preprocess: options.Preprocess = None,
    weights: options.Weights = None,
    new_tokens: options.NewTokens = None,
    trust: options.Trust = False,
    runtime: Annotated[
        str | None, typer.Option("--runtime", metavar="NAME", help="Profile on this runtime.", show_default=False)
    ] = None,
    recipe: Annotated[
        Path | None, typer.Option("--recipe", metavar="RECIPE", help="Profile what this recipe builds.")
    ] = None,
    scenario: options.Scenario = None,
    export: Annotated[
        list[str] | None,
        typer.Option(
            "--export",
            metavar="KIND[=FILE]",
            help="Also write chrome-trace (JSON) or roofline (SVG); repeat.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = None,
    cpus: options.Cpus = None,
    memory: options.Memory = None,
    json: options.Json = None,
    quiet: options.Quiet = False,
) -> int:
    """Times every operator in the runtime's own profiler and puts it beside the roof of this machine."""
    screen = Screen(json, quiet)
    wanted = [_export(text, model) for text in export or ()]
    with screen.watching() as watch:
        found = api.profile(
            model,
            data,
            runtime=runtime,
            recipe=recipe,
            scenario=scenario or "offline",
            cpus=cpus,
            memory=memory,
            label=label,
            output=output,
            preprocess=preprocess,
            weights=weights,
            new_tokens=new_tokens,
            trust=trust,
            on_event=watch,
        )
    screen.show(*profile_report(found, screen.console.width))
    for kind, path in wanted:
        _write(found, kind, path)
    if wanted:
        screen.steps([(kind, str(path)) for kind, path in wanted])
    screen.answer(found.to_json())
    return 0


def _export(text: str, model: str) -> tuple[str, Path]:
    kind, _, path = text.partition("=")
    if kind not in EXPORTS:
        raise InvalidInput(f"cannot export {kind!r}", f"use one of: {', '.join(EXPORTS)}")
    if kind == "roofline" and not (find_spec("altair") and find_spec("vl_convert")):
        raise InvalidInput("drawing a plot needs altair", "install the extra", "pip install 'hasten[plots]'")
    return kind, Path(path) if path else Path(Path(model).stem + EXPORTS[kind])


def _write(found: api.ProfileReport, kind: str, path: Path) -> None:
    if kind == "chrome-trace":
        text = json_format.dumps(found.profile.to_chrome_trace())
    else:
        from hasten.view.roofline import roofline_svg

        text = roofline_svg(found.profile.to_json())
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Failed(f"cannot write {path}: {error.strerror}", "choose a place that can be written") from None


def profile_report(found: api.ProfileReport, width: int) -> Iterator[RenderableType]:
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


def operators_table(rows: Sequence[OperatorRow], width: int) -> Table:
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
