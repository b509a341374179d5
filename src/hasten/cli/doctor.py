"""`hasten doctor`: this machine, its measured limits, and what can be used on it."""

from __future__ import annotations

from typing import Annotated

import typer

from hasten import api
from hasten.cli import options
from hasten.cli.screen import Screen


def command(
    refresh: Annotated[bool, typer.Option("--refresh", help="Measure the limits again.")] = False,
    json: options.Json = None,
    quiet: options.Quiet = False,
) -> int:
    """The limits are measured once, through the installed runtimes, and remembered until something changes."""
    from hasten.cli.tables import doctor_report
    from hasten.events import Event

    screen = Screen(json, quiet)
    with screen.watching() as watch:
        watch(Event("stage", "measuring the limits of this machine (once, then remembered)", 0.1))
        found = api.doctor(refresh=refresh)
    screen.show(*doctor_report(found))
    screen.answer(found.to_json())
    return 0
