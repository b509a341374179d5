"""`hasten compare`: two models, bundles or recipes side by side."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from hasten import api
from hasten.cli import options
from hasten.cli.screen import Screen
from hasten.cli.tables import figures_table, heading, sentence
from hasten.goal import parse_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hasten.lab.compare import Comparison


def command(
    a: Annotated[
        str, typer.Argument(metavar="A", help="A model or a bundle: the one to compare with.", show_default=False)
    ],
    b: Annotated[
        str, typer.Argument(metavar="B", help="A model or a bundle: the one in question.", show_default=False)
    ],
    data: options.Data = None,
    metric: options.MetricName = None,
    label: options.Label = None,
    output: options.ModelOutput = None,
    preprocess: options.Preprocess = None,
    weights: options.Weights = None,
    new_tokens: options.NewTokens = None,
    trust: options.Trust = False,
    goal: options.GoalName = "throughput",
    max_drop: options.MaxDrop = "1%",
    budget: options.Budget = "60s",
    recipe_a: Annotated[
        Path | None, typer.Option("--recipe-a", metavar="RECIPE", help="Run A under this recipe.")
    ] = None,
    recipe_b: Annotated[
        Path | None, typer.Option("--recipe-b", metavar="RECIPE", help="Run B under this recipe.")
    ] = None,
    seed: options.Seed = 0,
    cpus: options.Cpus = None,
    memory: options.Memory = None,
    price: options.Price = None,
    country: options.Country = None,
    json: options.Json = None,
    quiet: options.Quiet = False,
) -> int:
    """Rounds alternate, each side in its own process on the same cores; it stops when the interval is narrow enough."""
    screen = Screen(json, quiet)
    with screen.watching(budget_s=None) as watch:
        found = api.compare(
            a,
            b,
            data,
            goal=goal,
            budget=parse_seconds(budget),
            metric=metric,
            max_drop=max_drop,
            recipe_a=recipe_a,
            recipe_b=recipe_b,
            price=price,
            country=country,
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
    screen.show(*comparison_report(found))
    screen.answer(found.to_json())
    return 0


def comparison_report(found: Comparison) -> Iterator[RenderableType]:
    for side, name in (("A", found.a), ("B", found.b)):
        yield Text.assemble((f"{side}  ", "bold"), (name, "dim"), overflow="fold")
    yield Text("")
    yield figures_table(dict(zip("AB", (found.measurements[name] for name in (found.a, found.b)), strict=True)))
    lines = found.words()
    yield heading("Verdict")
    for place, line in enumerate(lines):
        yield sentence(line, "bold" if place == 0 else "")
