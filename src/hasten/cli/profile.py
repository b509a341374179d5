"""`hasten profile`: where the time goes."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Annotated

import typer

from hasten import api
from hasten.cli import options
from hasten.cli.screen import Screen
from hasten.errors import Failed, InvalidInput

EXPORTS = {"chrome-trace": ".trace.json", "roofline": ".roofline.svg"}


def command(
    model: options.Subject,
    data: options.Data = None,
    label: options.Label = None,
    output: options.ModelOutput = None,
    preprocess: options.Preprocess = None,
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
    from hasten.cli.tables import next_steps, profile_report

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
            on_event=watch,
        )
    screen.show(*profile_report(found, screen.console.width))
    for kind, path in wanted:
        _write(found, kind, path)
    if wanted:
        screen.show(next_steps([(kind, str(path)) for kind, path in wanted]))
    screen.answer(found.to_json())
    return 0


def _export(text: str, model: str) -> tuple[str, Path]:
    kind, _, path = text.partition("=")
    if kind not in EXPORTS:
        raise InvalidInput(f"cannot export {kind!r}", f"use one of: {', '.join(EXPORTS)}")
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
