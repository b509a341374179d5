"""`hasten optimize`: the whole loop on one model."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from hasten import api
from hasten.cli import options
from hasten.cli.app import INTERRUPTED
from hasten.cli.screen import Screen
from hasten.errors import GateRefused
from hasten.events import Event, OnEvent
from hasten.goal import parse_seconds
from hasten.study import Study


def command(
    model: options.Model,
    data: options.Data = None,
    metric: options.MetricName = None,
    label: options.Label = None,
    output: options.ModelOutput = None,
    preprocess: options.Preprocess = None,
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
        "preprocess": preprocess,
    }
    if dry_run:
        return _dry_run(screen, model, data, common)
    return run(
        screen,
        model,
        data,
        where=where or (),
        budget=budget,
        out=out,
        pack=pack,
        memory=memory,
        store=store,
        seed=seed,
        batch_axis=batch_axis,
        price=price,
        country=country,
        pue=pue,
        **common,
    ).finish(screen, again=_again())


class Outcome:
    """A study with how it came to its end: whole, interrupted, or with a bound that nothing meets."""

    def __init__(self, study: Study, interrupted: bool, refused: GateRefused | None, out: Path | None) -> None:
        self.study, self.interrupted, self.refused, self.out = study, interrupted, refused, out

    @property
    def code(self) -> int:
        return INTERRUPTED if self.interrupted else 3 if self.refused is not None else 0

    def finish(self, screen: Screen, again: str) -> int:
        """Print the study and what can be done with it; return the exit code."""
        from hasten.cli.tables import study_report

        screen.show(*study_report(self.study, screen.console.width))
        self.next_steps(screen, again)
        screen.answer(self.study.to_json())
        if self.refused is not None:
            from hasten.cli.failures import show

            show(self.refused)
        return self.code

    def next_steps(self, screen: Screen, again: str) -> None:
        from hasten.cli.tables import next_steps

        key = self.study.key[:12]
        steps = [("Bundle", str(self.out))] if self.out is not None and self.out.exists() else []
        steps.append(("Study", key))
        if self.interrupted:
            steps.append(("Go on", again))
        steps.append(("Report", f"hasten report {key} --out report.html"))
        if self.out is not None and self.out.exists():
            steps.append(("Check", f"hasten bench {shlex.quote(str(self.out))}"))
        screen.show(next_steps(steps))


def run(screen: Screen, model: str, data: str | None, *, budget: str, out: Path | None, **options: Any) -> Outcome:
    """Run the loop with a live table."""
    from hasten.cli.live import Board

    seen = _Done()
    seconds = parse_seconds(budget)
    title = f"{Path(model).name} · goal: {options['goal']} · quality may drop {options['max_drop']}"
    refused = None
    with screen.watching(Board, budget_s=seconds, title=title) as watch:
        try:
            study = api.optimize(model, data, budget=seconds, out=out, on_event=seen.then(watch), **options)
        except GateRefused as error:
            refused = error
            study = _study_of(error, options.get("store"))
    return Outcome(study, seen.interrupted, refused, out)


class _Done:
    """Remembers how the loop said that it ended."""

    interrupted = False

    def then(self, watch: OnEvent) -> OnEvent:
        def observe(event: Event) -> None:
            if event.kind == "done":
                self.interrupted = bool(event.data.get("interrupted"))
            watch(event)

        return observe


def _study_of(error: GateRefused, store: str | None) -> Study:
    """The study that was refused: it is stored all the same, and was stored last."""
    carried = getattr(error, "study", None)
    if isinstance(carried, Study):
        return carried
    raise error


def _dry_run(screen: Screen, model: str, data: str | None, common: dict[str, Any]) -> int:
    from hasten.cli.tables import proposals_table, sentence

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


def _again() -> str:
    """The same command line: the study resumes, and repeats nothing that it had finished."""
    return shlex.join(["hasten", *sys.argv[1:]])
