"""`hasten study`: what is in the store."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from hasten import api
from hasten.cli import options
from hasten.cli.screen import Screen

app = typer.Typer(
    add_completion=False,
    rich_markup_mode="rich",
    help="The studies in the store: list, show, rm.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

Key = Annotated[str, typer.Argument(metavar="STUDY", help="The beginning of its key.", show_default=False)]


@app.command("list", help="Every study, the newest first.")
def list_(store: options.StoreUrl = None, json: options.Json = None, quiet: options.Quiet = False) -> int:
    from hasten.cli.tables import sentence, studies_table

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


@app.command(help="All trials of one study, the choice and why.")
def show(key: Key, store: options.StoreUrl = None, json: options.Json = None, quiet: options.Quiet = False) -> int:
    from hasten.cli.tables import study_report

    screen = Screen(json, quiet)
    study = api.study(key, store)
    screen.show(*study_report(study, screen.console.width))
    screen.answer(study.to_json())
    return 0


@app.command(help="Delete studies from the store.")
def rm(
    keys: Annotated[list[str], typer.Argument(metavar="STUDY...", help="Beginnings of keys.", show_default=False)],
    store: options.StoreUrl = None,
    json: options.Json = None,
    quiet: options.Quiet = False,
) -> int:
    from hasten.cli.tables import sentence

    screen = Screen(json, quiet)
    removed = []
    for key in keys:
        study = api.study(key, store)
        api.remove_study(study.key, store)
        removed.append(study.key)
        screen.show(sentence(f"removed {study.key[:12]} ({study.workload.model.path.name})"))
    screen.answer({"schema": "hasten.removed/1", "removed": removed})
    return 0
