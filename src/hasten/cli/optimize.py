"""`hasten optimize`: the whole loop on one model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from hasten import api
from hasten.cli import options
from hasten.cli.outcome import run
from hasten.cli.screen import Screen
from hasten.cli.tables import light, sentence
from hasten.goal import parse_seconds
from hasten.view.number import ratio

if TYPE_CHECKING:
    from hasten.levers import Proposal


def command(
    model: options.Model,
    data: options.Data = None,
    metric: options.MetricName = None,
    label: options.Label = None,
    output: options.ModelOutput = None,
    drop_output: Annotated[
        list[str] | None,
        typer.Option(
            "--drop-output",
            metavar="KEY",
            help="An output that nobody reads, and that need not be computed; repeat.",
            rich_help_panel=options.DATA,
        ),
    ] = None,
    preprocess: options.Preprocess = None,
    weights: options.Weights = None,
    new_tokens: options.NewTokens = None,
    trust: options.Trust = False,
    batch_axis: options.BatchAxis = "auto",
    goal: options.GoalName = "throughput",
    max_drop: options.MaxDrop = "1%",
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            metavar="BOUND",
            help="A bound that must hold, such as 'p99<20ms'; repeat.",
            rich_help_panel=options.GOAL,
        ),
    ] = None,
    scenario: options.Scenario = None,
    budget: options.Budget = "5m",
    only: options.Only = None,
    skip: options.Skip = None,
    runtime: options.Runtimes = None,
    seed: options.Seed = 0,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Say what would be tried first and why; try nothing.", rich_help_panel=options.SEARCH
        ),
    ] = False,
    cpus: options.Cpus = None,
    memory: options.Memory = None,
    store: options.StoreUrl = None,
    price: options.Price = None,
    country: options.Country = None,
    pue: options.Pue = 1.0,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="BUNDLE", help="Ship the winner here.", rich_help_panel=options.OUTPUT),
    ] = None,
    pack: options.Pack = False,
    fallback: options.Fallback = False,
    json: options.Json = None,
    quiet: options.Quiet = False,
) -> int:
    """Exit code 3: a bound of --where is met by no variant. Ctrl-C ends early and ships the best so far."""
    screen = Screen(json, quiet)
    common: dict[str, Any] = {
        "goal": goal,
        "max_drop": max_drop,
        "only": only or (),
        "skip": skip or (),
        "runtime": runtime or (),
        "scenario": scenario,
        "metric": metric,
        "cpus": cpus,
        "label": label,
        "output": output,
        "drop_outputs": drop_output or (),
        "preprocess": preprocess,
        "weights": weights,
        "new_tokens": new_tokens,
        "trust": trust,
    }
    if dry_run:
        return _dry_run(screen, model, data, common)
    seconds = parse_seconds(budget)
    title = f"{Path(model).name} · goal: {goal} · quality may drop {max_drop}"
    outcome = run(
        screen,
        title,
        seconds,
        out,
        lambda watch: api.optimize(
            model,
            data,
            where=where or (),
            budget=seconds,
            out=out,
            pack=pack,
            fallback=fallback,
            memory=memory,
            store=store,
            seed=seed,
            batch_axis=batch_axis,
            price=price,
            country=country,
            pue=pue,
            on_event=watch,
            **common,
        ),
    )
    outcome.show(screen)
    return outcome.end(screen)


def _dry_run(screen: Screen, model: str, data: str | None, common: dict[str, Any]) -> int:
    with screen.watching() as watch:
        proposals = api.propose(model, data, on_event=watch, **common)
    screen.show(proposals_table(proposals))
    if not proposals:
        screen.show(sentence("No lever has anything to propose for this model on this machine."))
    screen.answer(
        {
            "schema": "hasten.proposals/1",
            "proposals": [
                {
                    "lever": each.lever,
                    "recipe": each.recipe.to_json(),
                    "gain": {
                        "value": each.gain.factor,
                        "ci95": None,
                        "unit": "x",
                        "source": f"estimated: {each.gain.source}",
                    },
                    "why": each.why,
                }
                for each in proposals
            ],
        }
    )
    return 0


def proposals_table(proposals: Sequence[Proposal]) -> Table:
    table = light(expand=True)
    table.add_column("Lever", no_wrap=True)
    table.add_column("Predicted", justify="right", no_wrap=True)
    table.add_column("Recipe", ratio=2, overflow="fold")
    table.add_column("Why", ratio=3, style="dim", overflow="fold")
    for each in proposals:
        table.add_row(each.lever, ratio(each.gain.factor), each.recipe.describe(), each.why)
    return table
