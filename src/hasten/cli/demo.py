"""`hasten demo`: the main job on a real model and real labelled data, with nothing to set up."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from hasten import api
from hasten.cli import cells, options
from hasten.cli.outcome import run
from hasten.cli.screen import Screen
from hasten.cli.tables import heading, light, sentence
from hasten.demo import demo
from hasten.goal import parse_seconds
from hasten.measurement import Trial
from hasten.report.words import runtime_words, say
from hasten.study import Study


def command(
    model: Annotated[str, typer.Option("--model", metavar="vision|text|llm", help="Which demo.")] = "vision",
    budget: Annotated[
        str | None,
        typer.Option("--budget", metavar="TIME", help="Time to spend; by default the demo's own.", show_default=False),
    ] = None,
    cpus: options.Cpus = None,
    memory: options.Memory = None,
    store: options.StoreUrl = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="BUNDLE",
            help="Where the bundle goes; by default ./hasten-demo-MODEL.bundle.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = None,
    json: options.Json = None,
    quiet: options.Quiet = False,
) -> int:
    """vision: a CNN on Fashion-MNIST. text: MiniLM embeddings (extra hf). llm: SmolLM2 in 4 bits (extra llm)."""
    screen = Screen(json, quiet)
    chosen = demo(model)
    bundle = out or Path(f"hasten-demo-{chosen.name}.bundle")
    seconds = parse_seconds(budget) if budget else chosen.budget_s
    outcome = run(
        screen,
        f"{chosen.title} · {chosen.metric or 'perplexity'} may get worse by {chosen.max_drop}",
        seconds,
        bundle,
        lambda watch: api.optimize(
            chosen.model,
            chosen.data,
            metric=chosen.metric,
            goal="throughput",
            max_drop=chosen.max_drop,
            new_tokens=chosen.new_tokens,
            budget=seconds,
            out=bundle,
            cpus=cpus,
            memory=memory,
            store=store,
            on_event=watch,
        ),
    )
    study = outcome.study
    page = api.report(study, bundle.parent / f"hasten-demo-{chosen.name}.html")
    outcome.show(screen)
    screen.show(heading("In short"), in_short(study))
    if chosen.beside:
        screen.show(sentence(chosen.beside, "dim"))
    return outcome.end(
        screen,
        [
            ("Report", str(page)),
            ("Run it", f"hasten bench {bundle}"),
            ("Your own", "hasten optimize MODEL.onnx --data SAMPLES.npz --metric accuracy --out my.bundle"),
        ],
    )


def in_short(study: Study) -> Table:
    """The winner beside the honest baselines: the model as brought, and the same runtime at full precision."""
    table = light()
    table.add_column("")
    table.add_column("", overflow="fold")
    for title in ("Throughput", "Quality", "Speed-up"):
        table.add_column(title, justify="right", no_wrap=True)
    for name, trial in lines(study):
        figure = trial.measurement.figures.get(study.goal.figure)
        table.add_row(
            name,
            runtime_words(trial) if trial.origin != "search" else trial.recipe.describe(),
            say(figure),
            cells.quality(trial, study.baseline),
            cells.speedup(trial),
            style="bold" if trial.id == study.best_id else "",
        )
    return table


def lines(study: Study) -> list[tuple[str, Trial]]:
    """As brought, the winner's runtime at full precision, and the winner; what was not measured is left out."""
    best, found = study.best, []
    if study.baseline is not None:
        found.append(("as brought", study.baseline))
    full = [t for t in study.trials if t.origin == "full-precision" and t.status != "failed"]
    same = [t for t in full if best is not None and t.recipe.runtime.get("name") == best.recipe.runtime.get("name")]
    found += [("full precision", trial) for trial in (same or full)[:1] if trial is not best]
    if best is not None and best is not study.baseline:
        found.append(("chosen", best))
    return found
