"""`hasten study`: what is in the store."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from hasten import api
from hasten.cli import options
from hasten.cli.help import HelpfulCommand, HelpfulGroup
from hasten.cli.screen import Screen
from hasten.cli.tables import light, sentence

if TYPE_CHECKING:
    from hasten.lab.store import Entry

app = typer.Typer(**options.APP, cls=HelpfulGroup, help="The studies in the store.")

Key = Annotated[str, typer.Argument(metavar="STUDY", help="The beginning of its key.", show_default=False)]


@app.command("list", cls=HelpfulCommand, help="Every study, the newest first.")
def list_(store: options.StoreUrl = None, json: options.Json = None, quiet: options.Quiet = False) -> int:
    screen = Screen(json, quiet)
    entries = api.studies(store)
    if entries:
        screen.show(studies_table(entries, time.time()))
    else:
        screen.show(sentence("The store is empty: hasten optimize, or hasten demo, puts a study into it."))
    screen.answer(
        {
            "schema": "hasten.studies/1",
            "studies": [
                {
                    "key": entry.key,
                    "created": entry.created,
                    "updated": entry.updated,
                    "trials": entry.trials,
                    **{name: entry.header[name] for name in ("workload", "goal", "best", "why")},
                }
                for entry in entries
            ],
        }
    )
    return 0


@app.command(cls=HelpfulCommand, help="All trials of one study, the choice and why.")
def show(key: Key, store: options.StoreUrl = None, json: options.Json = None, quiet: options.Quiet = False) -> int:
    from hasten.cli.trials import study_report

    screen = Screen(json, quiet)
    study = api.study(key, store)
    screen.show(*study_report(study, screen.console.width))
    screen.answer(study.to_json())
    return 0


@app.command(cls=HelpfulCommand, help="Delete studies from the store.")
def rm(
    keys: Annotated[list[str], typer.Argument(metavar="STUDY...", help="Beginnings of keys.", show_default=False)],
    store: options.StoreUrl = None,
    json: options.Json = None,
    quiet: options.Quiet = False,
) -> int:
    screen = Screen(json, quiet)
    removed = []
    for key in keys:
        study = api.study(key, store)
        api.remove_study(study.key, store)
        removed.append(study.key)
        screen.show(sentence(f"removed {study.key[:12]} ({study.workload.model.path.name})"))
    screen.answer({"schema": "hasten.removed/1", "removed": removed})
    return 0


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
            header["why"].partition(" (")[0] or "unfinished",
        )
    return table


def ago(seconds: float) -> str:
    """How long ago, in one unit."""
    for length, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= length:
            return f"{int(seconds // length)} {unit} ago"
    return "just now"
