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
from hasten.errors import InvalidInput

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
    concurrency: Annotated[
        str | None,
        typer.Option(
            "--concurrency",
            metavar="K,...",
            help="Language models: how many prompts are under way at once, such as 1,2,4,8; one run each.",
            rich_help_panel=options.GOAL,
        ),
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
    """The load comes from MLPerf's own LoadGen. Without --scenario: single-stream, or offline with --concurrency."""
    screen = Screen(json, quiet)
    levels = _levels(concurrency)
    with screen.watching() as watch:
        found = {
            level: api.bench(
                model,
                data,
                scenario=scenario or ("single-stream" if level is None else "offline"),
                concurrency=level,
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
            for level in levels
        }
    if None in found:
        screen.show(*bench_report(found[None]))
        screen.answer(found[None].to_json())
        return 0
    screen.show(figures_table({f"{level} at once": each.measurement for level, each in found.items()}))
    answers = [{"concurrency": level, **each.to_json()} for level, each in found.items()]
    screen.answer({"schema": "hasten.concurrency/1", "levels": answers})
    return 0


def _levels(concurrency: str | None) -> list[int | None]:
    """The numbers of `--concurrency`, or None alone."""
    if concurrency is None:
        return [None]
    try:
        return list(dict.fromkeys(int(each) for each in concurrency.split(",")))
    except ValueError:
        raise InvalidInput(f"--concurrency {concurrency!r} makes no sense", "give it as 1,2,4,8") from None


def bench_report(bench: api.Bench) -> Iterator[RenderableType]:
    load = f"{bench.queries:,} queries in {bench.seconds:.1f} s"
    yield Text(f"{bench.subject} · {bench.scenario} · {bench.recipe.describe()} · {load}", style="dim")
    yield Text("")
    yield figures_table({bench.subject: bench.measurement})
    if not bench.valid:
        yield sentence("LoadGen calls this run INVALID: too few queries, or a bound was missed.", "yellow")
    yield from notes(bench.notes)
