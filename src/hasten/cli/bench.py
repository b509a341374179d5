"""`hasten bench`: one model or bundle in one MLPerf scenario."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from hasten import api
from hasten.cli import options
from hasten.cli.screen import Screen
from hasten.cli.tables import figures_table, notes, sentence

if TYPE_CHECKING:
    from rich.console import RenderableType


def command(
    model: options.Subject,
    data: options.Data = None,
    label: options.Label = None,
    output: options.ModelOutput = None,
    preprocess: options.Preprocess = None,
    weights: options.Weights = None,
    new_tokens: options.NewTokens = None,
    trust: options.Trust = False,
    scenario: options.Scenario = None,
    seconds: Annotated[
        float,
        typer.Option("--seconds", metavar="S", min=0.1, help="How long to run.", rich_help_panel=options.GOAL),
    ] = 10.0,
    qps: Annotated[
        float | None,
        typer.Option(
            "--qps",
            metavar="RATE",
            min=0,
            help="Server: arrivals a second; by default the most that keeps the bound.",
            rich_help_panel=options.GOAL,
        ),
    ] = None,
    bound: Annotated[
        float | None,
        typer.Option(
            "--latency-bound", metavar="MS", min=0, help="Server: p99 must stay below.", rich_help_panel=options.GOAL
        ),
    ] = None,
    recipe: Annotated[
        Path | None, typer.Option("--recipe", metavar="RECIPE", help="Run what this recipe builds.")
    ] = None,
    seed: options.Seed = 0,
    cpus: options.Cpus = None,
    memory: options.Memory = None,
    price: options.Price = None,
    country: options.Country = None,
    pue: options.Pue = 1.0,
    json: options.Json = None,
    quiet: options.Quiet = False,
) -> int:
    """The load comes from MLPerf's own LoadGen. Without --scenario: single-stream."""
    screen = Screen(json, quiet)
    with screen.watching() as watch:
        found = api.bench(
            model,
            data,
            scenario=scenario or "single-stream",
            seconds=seconds,
            target_qps=qps,
            latency_bound_ms=bound,
            recipe=recipe,
            price=price,
            country=country,
            pue=pue,
            cpus=cpus,
            memory=memory,
            label=label,
            output=output,
            preprocess=preprocess,
            weights=weights,
            new_tokens=new_tokens,
            trust=trust,
            seed=seed,
            on_event=watch,
        )
    screen.show(*bench_report(found))
    screen.answer(found.to_json())
    return 0


def bench_report(bench: api.Bench) -> Iterator[RenderableType]:
    load = f"{bench.queries:,} queries in {bench.seconds:.1f} s"
    yield Text(f"{bench.subject} · {bench.scenario} · {bench.recipe.describe()} · {load}", style="dim")
    yield Text("")
    yield figures_table({bench.subject: bench.measurement})
    if not bench.valid:
        yield sentence("LoadGen calls this run INVALID: too few queries, or a bound was missed.", "yellow")
    yield from notes(bench.notes)
