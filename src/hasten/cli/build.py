"""`hasten build`: a known recipe, verified and shipped."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hasten import api
from hasten.cli import options
from hasten.cli.outcome import run
from hasten.cli.screen import Screen
from hasten.goal import parse_seconds


def command(
    model: options.Model,
    recipe: Annotated[
        Path, typer.Option("--recipe", metavar="RECIPE", help="The recipe, in TOML.", show_default=False)
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", metavar="BUNDLE", help="Ship it here.", show_default=False, rich_help_panel=options.OUTPUT
        ),
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
    seed: options.Seed = 0,
    cpus: options.Cpus = None,
    memory: options.Memory = None,
    store: options.StoreUrl = None,
    pack: options.Pack = False,
    json: options.Json = None,
    quiet: options.Quiet = False,
) -> int:
    """Exit code 3: the recipe turns out slower or worse here than the model as brought; nothing is shipped then."""
    screen = Screen(json, quiet)
    seconds = parse_seconds(budget)
    outcome = run(
        screen,
        f"{Path(model).name} · {recipe}",
        seconds,
        out,
        lambda watch: api.build(
            model,
            recipe,
            out,
            data,
            metric=metric,
            goal=goal,
            max_drop=max_drop,
            budget=seconds,
            pack=pack,
            cpus=cpus,
            memory=memory,
            store=store,
            seed=seed,
            label=label,
            output=output,
            preprocess=preprocess,
            weights=weights,
            new_tokens=new_tokens,
            trust=trust,
            on_event=watch,
        ),
    )
    outcome.show(screen)
    return outcome.end(screen)
