"""A small space of recipes whose truth is known, and a lab with a clock of its own that measures it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hasten.device import Device
from hasten.errors import Failed
from hasten.events import OnEvent, ignore
from hasten.goal import Goal
from hasten.levers import Case, Lever, Need, Prediction, Proposal
from hasten.levers.base import SettingsLever
from hasten.measurement import Figure, Measurement, Quality, Trial
from hasten.model import Facts, Model, Signature, Tensor
from hasten.recipe import Recipe, Step
from hasten.search.inference import Search
from hasten.study import Study
from hasten.variant import Variant
from hasten.workload import Samples, Workload

BROUGHT = Recipe(runtime={"name": "plain"}, runner={"batch": 8})
ONE = Figure(1.0, "x", "measured", (1.0, 1.0))


@dataclass(frozen=True)
class Truth:
    """What a recipe is worth: speed over the model as brought, points of quality lost, and how measuring it goes.

    Confirming finds `confirmed_speed` and `confirmed_drop` where they are given. `fails` is why it cannot be measured.
    """

    speed: float = 1.0
    drop: float = 0.0
    confirmed_speed: float | None = None
    confirmed_drop: float | None = None
    fails: str = ""
    seconds: float = 5.0
    p99_ms: float | None = None


def truth(recipe: Recipe) -> Truth:
    """The space of the tests: the levers interact, and the best is INT8 on the quick runtime in bf16 with 2 streams."""
    quick = recipe.runtime.get("name") == "quick"
    speed = 1.5 if quick else 1.0
    speed *= 1.4 if recipe.runtime.get("precision") == "bf16" else 1.0
    drop = 0.1 if recipe.runtime.get("precision") == "bf16" else 0.0
    if recipe.has("int8"):
        speed *= 1.6 if quick else 0.8
        drop += 0.3
    if recipe.has("prune"):
        speed *= 3.0
        drop += 8.0
    speed *= {None: 1.0, 1: 0.9, 2: 1.25, 4: 1.1}[recipe.runtime.get("streams")]
    speed *= {2: 0.9, 4: 1.05, 8: 1.0, 16: 1.08, 32: 0.7}[recipe.runner["batch"]]
    return Truth(speed, drop)


BEST = Recipe((Step("int8"),), {"name": "quick", "precision": "bf16", "streams": 2}, {"batch": 16})


class Engine(SettingsLever):
    name = "engine"

    def propose(self, case: Case) -> Iterable[Proposal]:
        if case.recipe.runtime.get("name") == "plain" and not case.recipe.steps:
            for precision in ("bf16", "fp32"):
                recipe = case.recipe.edit("runtime", name="quick", precision=precision)
                yield Proposal(recipe, Prediction(1.3, "prior"), f"quick in {precision}", self.name)


class Streams(SettingsLever):
    name = "streams"

    def propose(self, case: Case) -> Iterable[Proposal]:
        for streams in (4, 2, 1):
            if case.recipe.runtime.get("streams") != streams:
                recipe = case.recipe.edit("runtime", streams=streams)
                yield Proposal(recipe, Prediction(1.1, "prior"), f"{streams} streams", self.name)


class BatchSize(SettingsLever):
    name = "batch"

    def propose(self, case: Case) -> Iterable[Proposal]:
        now = case.recipe.runner["batch"]
        for batch in (now // 2, now * 2):
            if 2 <= batch <= 32:
                recipe = case.recipe.edit("runner", batch=batch)
                yield Proposal(recipe, Prediction(1.03, "prior"), f"batches of {batch}", self.name)


@dataclass
class StepLever:
    """A lever that appends one step, once."""

    name: str
    gain: float = 1.5
    needs: frozenset[Need] = frozenset()

    def propose(self, case: Case) -> Iterable[Proposal]:
        if not case.recipe.has(self.name):
            recipe = case.recipe.with_step(Step(self.name))
            yield Proposal(recipe, Prediction(self.gain, "prior"), f"apply {self.name}", self.name)

    def apply(self, variant: Variant, step: Step, case: Case) -> Variant:
        return variant


def levers(*more: Lever) -> dict[str, Lever]:
    found: tuple[Lever, ...] = (Engine(), StepLever("int8"), StepLever("prune", 2.0), Streams(), BatchSize(), *more)
    return {each.name: each for each in found}


def space() -> list[Recipe]:
    """Every recipe that these levers can reach."""
    engines: list[dict[str, Any]] = [{"name": "plain"}]
    engines += [{"name": "quick", "precision": precision} for precision in ("bf16", "fp32")]
    steps = [(), (Step("int8"),), (Step("prune"),), (Step("int8"), Step("prune"))]
    return [
        Recipe(chosen, engine if streams is None else {**engine, "streams": streams}, {"batch": batch})
        for engine, chosen, streams, batch in itertools.product(engines, steps, (None, 1, 2, 4), (2, 4, 8, 16, 32))
    ]


@dataclass
class FakeLab:
    """Measures `truth` without noise. Every operation calls `step(name)` before and after, and takes fake seconds.

    A race and a confirmation take `narrow_s` until their intervals are narrow, or all the time they are given.
    """

    goal: Goal
    truth: Callable[[Recipe], Truth] = truth
    step: Callable[[str], None] = lambda name: None
    now: float = 1000.0
    start_s: float = 3.0
    open_s: float = 1.0
    narrow_s: float = 20.0
    screened: list[str] = field(default_factory=list)
    raced: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def clock(self) -> float:
        return self.now

    def start(self, recipe: Recipe) -> None:
        self._takes("start", self.start_s)
        self.recipe = recipe

    def baseline(self) -> Trial:
        self._takes("baseline", 3.0)
        figures = self._figures(self.truth(self.recipe))
        return Trial(
            self.recipe.id,
            self.recipe,
            "ok",
            "the model as brought",
            Measurement(figures),
            ONE,
            seconds_spent=3.0,
            origin="brought",
        )

    def screen(self, recipe: Recipe, origin: str = "search", why: str = "") -> Trial:
        self.screened.append(recipe.id)
        known = self.truth(recipe)
        self._takes(f"screen {recipe.id}", known.seconds)
        trial = Trial(recipe.id, recipe, "failed", known.fails, seconds_spent=known.seconds, origin=origin, why=why)  # type: ignore[arg-type]
        return trial if known.fails else self._measured(trial, known.speed, known.drop, known)

    def race(self, recipes: Sequence[Recipe], budget_s: float) -> dict[str, Figure]:
        self.raced += [recipe.id for recipe in recipes]
        self._takes("race", min(budget_s, self.narrow_s) + self.open_s * len(recipes))
        return {recipe.id: _ratio(self.truth(recipe).speed) for recipe in recipes}

    def confirm(self, trial: Trial, beside: Sequence[Trial], budget_s: float) -> list[Trial]:
        self.asked.append(trial.id)
        everyone = [*(each for each in beside if each.id != trial.id), trial]
        seconds = min(budget_s, self.narrow_s) + self.open_s * len(everyone)
        self._takes("confirm", seconds)
        found = []
        for each in everyone:
            known = self.truth(each.recipe)
            speed = known.speed if known.confirmed_speed is None else known.confirmed_speed
            drop = known.drop if known.confirmed_drop is None else known.confirmed_drop
            again = replace(each, final=True, seconds_spent=each.seconds_spent + seconds / len(everyone))
            if each.origin != "brought":
                again = self._measured(again, speed, drop, known)
                if again.status == "ok" and speed * 0.98 <= 1.0:
                    again = replace(again, status="undecided", reason="the improvement is not shown")
            found.append(again)
        return found

    def final_s(self) -> float:
        return 0.0

    def operators(self, recipe: Recipe) -> list[dict[str, Any]]:
        self._takes("operators", 2.0)
        return [{"kind": "Conv", "microseconds": 80.0}, {"kind": "Relu", "microseconds": 20.0}]

    def close(self) -> None:
        pass

    def _measured(self, trial: Trial, speed: float, drop: float, known: Truth) -> Trial:
        figures = self._figures(replace(known, speed=speed))
        quality = Quality(
            "accuracy",
            Figure(90.0 - drop, "%", "measured"),
            Figure(drop, "pt", "measured", (drop - 0.1, drop + 0.1)),
            "labels",
            100,
        )
        missed = [c.text for c in self.goal.where if not c.holds(figures[c.figure].value)]
        status, reason = "ok", ""
        if drop > self.goal.max_drop.amount:
            status, reason = "rejected", f"quality: {drop:g} points lost"
        elif speed * 1.02 < 1.0:
            status, reason = "rejected", f"slower than the model as brought: {speed:.2f}x"
        elif missed:
            status, reason = "rejected", f"misses {', '.join(missed)}"
        return replace(
            trial,
            status=status,  # type: ignore[arg-type]
            reason=reason,
            measurement=Measurement(figures, quality),
            speedup=_ratio(speed),
            rounds=((100.0, 100.0 * speed),) * 3,
        )

    def _figures(self, known: Truth) -> dict[str, Figure]:
        return {
            "throughput_per_s": Figure(100.0 * known.speed, "/s", "measured"),
            "latency_ms.p99": Figure(known.p99_ms or 10.0 / known.speed, "ms", "measured"),
            "peak_memory_mb": Figure(100.0, "MB", "measured"),
            "size_mb": Figure(10.0, "MB", "measured"),
        }

    def _takes(self, name: str, seconds: float) -> None:
        self.step(f"begin {name}")
        self.now += seconds
        self.step(f"end {name}")


def _ratio(value: float) -> Figure:
    return Figure(value, "x", "measured", (value * 0.98, value * 1.02))


def study(goal: Goal | None = None, seed: int = 0) -> Study:
    tensors = (Tensor("x", "float32", ("batch", 4)),)
    model = Model(Path("model.onnx"), "onnx", "0" * 64, Signature(tensors, tensors), Facts(10, 40))
    samples = Samples(Path("samples"), "1" * 64, 100, (Tensor("x", "float32", (4,)),), "data", True)
    return Study(
        Workload(model, samples, "accuracy", "offline"),
        goal or Goal.parse("throughput", "1pt", (), 600.0),
        Device("fake", cpus=(0, 1)),
        {"python": "3"},
        seed,
    )


def search(
    store: Any,
    goal: Goal | None = None,
    *,
    lab: FakeLab | None = None,
    given: Mapping[str, Lever] | None = None,
    sensitivity: Callable[[Case], Mapping[str, Any] | None] | None = None,
    on_event: OnEvent = ignore,
) -> tuple[Search, FakeLab]:
    """A search over the space above, and the lab that it uses."""
    subject = study(goal)
    lab = lab or FakeLab(subject.goal)
    case = Case(subject.workload, subject.goal, subject.device, Recipe(), Path("unused"), subject.workload.split())
    return (
        Search(subject, case, lab, store, levers() if given is None else given, BROUGHT, on_event, sensitivity),
        lab,
    )


def broken(recipe: Recipe) -> Truth:
    raise Failed(f"nothing is known of {recipe.id}")
