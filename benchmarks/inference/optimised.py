"""Runs `hasten optimize` once for each workload of a run, so that several figures can ask about one study."""

from __future__ import annotations

import time
from dataclasses import dataclass

from benchmarks.common import Run
from hasten import api
from hasten.events import Event
from hasten.recipe import Recipe
from hasten.study import Study
from hasten.variant import Variant


@dataclass(frozen=True)
class Optimised:
    """A finished study with what was asked for. `recipe` is its answer, which may be the model as brought."""

    model: str
    data: str
    metric: str | None
    max_drop: str
    study: Study
    seconds: float

    @property
    def recipe(self) -> Recipe:
        best = self.study.best
        if best is None:
            raise RuntimeError(f"the study found nothing: {self.study.why}")
        return best.recipe

    def build(self, recipe: Recipe) -> Variant:
        from hasten.search.optimize import builder_of

        return builder_of(self.study)(recipe)


def optimised(
    run: Run,
    name: str,
    model: str,
    data: str,
    *,
    goal: str = "throughput",
    metric: str | None = None,
    max_drop: str = "1pt",
    budget_s: float = 300.0,
    only: tuple[str, ...] = (),
) -> Optimised:
    """The study called `name`, run at its first use. The device's limits are measured before its budget begins."""
    if name not in run.shared:
        api.doctor()
        run.say(f"optimising {name} for {budget_s:g} s")

        def hear(event: Event) -> None:
            if run.quick:
                return
            if event.trial is not None and event.kind == "trial":
                found = "" if event.trial.speedup is None else f"{event.trial.speedup.value:.2f}x "
                run.say(f"  {event.trial.recipe.describe()}: {found}{event.trial.status} {event.trial.reason}")
            elif event.kind in ("stage", "note"):
                run.say(f"  {event.text}")

        start = time.monotonic()
        study = api.optimize(
            model, data, goal=goal, metric=metric, max_drop=max_drop, budget=budget_s, only=only, on_event=hear
        )
        run.shared[name] = Optimised(model, data, metric, max_drop, study, time.monotonic() - start)
        run.say(f"{name}: {study.why}")
    found: Optimised = run.shared[name]
    return found
