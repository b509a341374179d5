"""`hasten report`: one self-contained HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hasten import api
from hasten.cli import options
from hasten.cli.screen import Screen


def command(
    subject: Annotated[
        str,
        typer.Argument(metavar="STUDY|BUNDLE", help="A bundle, or the beginning of a study's key.", show_default=False),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="Where the page goes; by default hasten-report-SUBJECT.html.",
            show_default=False,
        ),
    ] = None,
    store: options.StoreUrl = None,
    json: options.Json = None,
    quiet: options.Quiet = False,
) -> int:
    """The page asks for nothing from the network when it is opened."""
    screen = Screen(json, quiet)
    target = out or Path(f"hasten-report-{Path(subject).name.partition('.')[0]}.html")
    page = api.report(subject, target, store=store)
    screen.steps([("Report", str(page))])
    screen.answer({"schema": "hasten.report/1", "subject": subject, "path": str(page)})
    return 0
