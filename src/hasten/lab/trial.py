"""Evaluates recipes on this machine: screens one beside the baseline, races finalists, confirms a winner.

`Lab` is what the search needs; `LocalLab` does it with worker processes. The lab knows nothing of levers: a function
`build(recipe) -> Variant` is handed to it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from hasten.device import Device
from hasten.errors import Failed, HastenError, InvalidInput
from hasten.events import Event, OnEvent, ignore
from hasten.goal import Goal
from hasten.isolate import Limits, Worker, WorkerFailed, run
from hasten.lab.race import race
from hasten.measure.statistics import ratio_interval
from hasten.measure.summary import Tariff, summarise
from hasten.measurement import Figure, Measurement, Quality, Trial
from hasten.recipe import Recipe
from hasten.variant import Variant
from hasten.workload import Split, Workload

ROUND_S = 0.5
"""A round of the baseline should take about this long: short rounds follow the machine's drift, long ones hide jitter."""
SCENE_OFFLINE = 256
SCENE_SINGLE = 64
VERIFY_SHARE = 0.4
"""Of the time to confirm, at most this share goes to the baseline's outputs on the verification samples."""
QUALITY_S = 6.0
"""Screening spends at most about this long on the baseline's outputs; confirming uses every verification sample."""


class Lab(Protocol):
    """What a search asks of a lab. Every answer is a trial with status and reason; none of these raises for a bad recipe."""

    def clock(self) -> float: ...
    def start(self, recipe: Recipe) -> None: ...
    def baseline(self) -> Trial: ...
    def screen(self, recipe: Recipe, origin: str, why: str) -> Trial: ...
    def race(self, recipes: Sequence[Recipe], budget_s: float) -> dict[str, Figure]: ...
    def confirm(self, trial: Trial, beside: Sequence[Trial], budget_s: float) -> list[Trial]: ...
    def operators(self, recipe: Recipe) -> list[dict[str, Any]]: ...
    def close(self) -> None: ...


@dataclass
class Station:
    """A worker with one variant opened in it: a contestant of a race."""

    name: str
    worker: Worker
    goal: Goal
    tariff: Tariff
    opened: Mapping[str, Any]
    repeat: int = 1
    scenario: str | None = None
    rounds: list[Mapping[str, Any]] = field(default_factory=list)
    timeout_s: float = 120.0

    def round(self) -> float:
        """Run one round and return the goal's figure for it."""
        answer = self.worker.call(
            "hasten.measure.bench:round", {"repeat": self.repeat, "scenario": self.scenario}, self.timeout_s
        )
        self.rounds.append(answer)
        return self.tariff.figure(self.goal.figure, answer)

    def outputs(self, indices: Sequence[int], path: Path) -> Path:
        self.worker.call(
            "hasten.measure.bench:outputs", {"indices": list(indices), "path": str(path)}, self.timeout_s * 4
        )
        return path


@dataclass
class LocalLab:
    """Trials on this machine, each in its own worker, all on the same cores under the same memory limit."""

    workload: Workload
    goal: Goal
    device: Device
    split: Split
    workdir: Path
    build: Callable[[Recipe], Variant]
    tariff: Tariff
    memory_bytes: int | None = None
    seed: int = 0
    on_event: OnEvent = ignore
    screen_rounds: int = 5

    def __post_init__(self) -> None:
        self.workdir.mkdir(parents=True, exist_ok=True)
        self._stack = ExitStack()
        self._reference: Station | None = None
        self._scene: tuple[int, ...] = ()
        self._quality_scene: tuple[int, ...] = ()
        self._repeat = 1
        self._per_sample_s = 1e-3
        self._quality: dict[str, dict[str, Any]] = {}
        self._baseline: Recipe | None = None

    @property
    def limits(self) -> Limits:
        return Limits(memory_bytes=self.memory_bytes, cpus=self.device.cpus or None)

    def clock(self) -> float:
        return time.monotonic()

    # -- the baseline ---------------------------------------------------------------------------------------------

    def start(self, recipe: Recipe) -> None:
        """Open the model as brought, size the scene by its speed, and keep it open beside every later trial."""
        self._baseline = recipe
        pool = self.split.selection
        few = min(len(pool), 16)
        probe = self._open(recipe, pool[:few])
        probe.worker.close()
        self._per_sample_s = max(1e-6, probe.opened["round_s"] / few)
        single = self.workload.scenario == "single-stream"
        wanted = max(4 if single else 32, int(ROUND_S / self._per_sample_s))
        count = max(1, min(len(pool), SCENE_SINGLE if single else SCENE_OFFLINE, wanted))
        self._scene = pool[:count]
        self._repeat = max(1, round(ROUND_S / (self._per_sample_s * count)))
        self._quality_scene = pool[: max(few, min(len(pool), int(QUALITY_S / self._per_sample_s)))]
        self._reference = self._stack.enter_context(_closing(self._open(recipe, self._scene)))

    def baseline(self) -> Trial:
        """The figures of the model as brought; its speed-up is 1 by definition."""
        start = self.clock()
        reference = self._need_reference()
        reference.rounds = []
        for _ in range(self.screen_rounds):
            reference.round()
        figures = self._figures(reference, reference.rounds)
        one = Figure(1.0, "x", "measured", (1.0, 1.0))
        recipe = self._need_baseline()
        return Trial(
            recipe.id,
            recipe,
            "ok",
            "the model as brought",
            Measurement(figures),
            one,
            seconds_spent=self.clock() - start,
            origin="brought",
        )

    # -- screening ------------------------------------------------------------------------------------------------

    def screen(self, recipe: Recipe, origin: str = "search", why: str = "") -> Trial:
        """A few alternating rounds beside the baseline, and the quality on the selection samples."""
        start = self.clock()
        stderr = ""
        trial = Trial(recipe.id, recipe, "failed", origin=origin, why=why)  # type: ignore[arg-type]
        try:
            reference = self._need_reference()
            station = self._open(recipe, self._scene)
            with station.worker:
                pairs = []
                for number in range(self.screen_rounds):
                    first, second = (reference, station) if number % 2 == 0 else (station, reference)
                    values = {first.name: first.round()}
                    values[second.name] = second.round()
                    pairs.append((values[reference.name], values[station.name]))
                    if number >= 1 and self._hopeless(pairs):
                        break
                speedup = ratio_interval(pairs, self.goal.higher_is_better, seed=self.seed)
                quality, verdict = self._screen_quality(recipe, station)
                figures = self._figures(station, station.rounds)
                stderr = station.worker.stderr[-2000:]
            status, reason = self._judge(speedup, verdict, figures)
            trial = replace(
                trial,
                status=status,
                reason=reason,
                measurement=Measurement(figures, quality),
                speedup=speedup,
                rounds=tuple(pairs),
                stderr=stderr,
            )
        except WorkerFailed as error:
            trial = replace(trial, reason=error.outcome.reason, stderr=error.outcome.stderr[-2000:])
        except HastenError as error:
            trial = replace(trial, reason=error.cause)
        return replace(trial, seconds_spent=self.clock() - start)

    def _hopeless(self, pairs: Sequence[tuple[float, float]]) -> bool:
        return all(self.goal.ratio(a, b) < 0.5 for a, b in pairs)

    def _judge(self, speedup: Figure, verdict: Mapping[str, Any], figures: Mapping[str, Figure]) -> Any:
        """Screening only rejects what is clearly out; the race and the confirmation decide."""
        if verdict["verdict"] == "inferior":
            return "rejected", f"quality: {verdict['text']}"
        if speedup.ci95 and speedup.ci95[1] < 1.0:
            return "rejected", f"slower than the model as brought: {speedup.value:.2f}x"
        missed = [c.text for c in self.goal.where if c.figure in figures and not c.holds(figures[c.figure].value)]
        if missed:
            return "rejected", f"misses {', '.join(missed)}"
        return "ok", ""

    def _screen_quality(self, recipe: Recipe, station: Station) -> tuple[Quality, dict[str, Any]]:
        """Execution settings do not change what is computed: recipes alike in the rest share one verdict."""
        key = quality_key(recipe)
        if key not in self._quality:
            reference = self._outputs_path(self._need_baseline(), "selection")
            if not reference.is_file():
                self._need_reference().outputs(self._quality_scene, reference)
            path = station.outputs(self._quality_scene, self._outputs_path(recipe, "selection"))
            self._quality[key] = self._evaluate(path, self._quality_scene, "selection")
        verdict = self._quality[key]
        return _quality(verdict), verdict

    def _evaluate(self, path: Path, indices: Sequence[int], stage: str) -> dict[str, Any]:
        answer: dict[str, Any] = run(
            "hasten.measure.quality:evaluate",
            {
                "metric": self.workload.metric,
                "baseline": str(self._outputs_path(self._need_baseline(), stage)),
                "variant": str(path),
                "samples": str(self.workload.samples.path),
                "indices": list(indices),
                "output": self.workload.output,
                "max_drop": str(self.goal.max_drop),
                "seed": self.seed,
            },
            Limits(seconds=300),
        )
        return answer

    # -- racing and confirming ------------------------------------------------------------------------------------

    def race(self, recipes: Sequence[Recipe], budget_s: float) -> dict[str, Figure]:
        """Alternate the baseline and the finalists in fresh workers; a ratio for each that lived through it."""
        with ExitStack() as stack:
            contestants = [self._need_reference()]
            for recipe in recipes:
                try:
                    contestants.append(stack.enter_context(_closing(self._open(recipe, self._scene))))
                except HastenError:
                    continue
            if len(contestants) == 1:
                return {}
            result = race(
                contestants,
                ratio=self.goal.ratio,
                clock=self.clock,
                budget_s=budget_s,
                min_rounds=5,
                seed=self.seed,
                on_round=lambda number: self.on_event(Event("round", f"round {number} of the final race")),
            )
            return dict(result.ratios)

    def confirm(self, trial: Trial, beside: Sequence[Trial], budget_s: float) -> list[Trial]:
        """Fresh workers, fresh rounds and the verification samples, for the winner and the baselines beside it.

        The first of `beside` is the model as brought. Returns every one of them again, measured anew, in that order with
        the winner last; statuses of the winner say whether it holds.
        """
        start = self.clock()
        brought, *others = beside
        scene = self.split.verification[: max(1, len(self._scene))]
        everyone = [brought, *(other for other in others if other.id != trial.id), trial]
        with ExitStack() as stack:
            stations = [stack.enter_context(_closing(self._open(each.recipe, scene))) for each in everyone]
            result = race(
                stations,
                ratio=self.goal.ratio,
                clock=self.clock,
                budget_s=budget_s * 0.6,
                min_rounds=6,
                seed=self.seed + 1,
                on_round=lambda number: self.on_event(Event("round", f"round {number} of the confirmation")),
            )
            if trial.id not in result.ratios:
                raise Failed(f"the winner failed while it was confirmed: {result.errors.get(trial.id, 'unknown')}")
            latencies = self._latencies(stations)
            affordable = max(32, int(budget_s * VERIFY_SHARE / self._per_sample_s))
            indices = self.split.verification[:affordable]
            verdicts = {}
            for station, each in zip(stations, everyone, strict=True):
                if station.name in result.errors:
                    continue
                path = station.outputs(indices, self._outputs_path(each.recipe, "verification"))
                if each is not brought:
                    verdicts[each.id] = self._evaluate(path, indices, "verification")
            confirmed = []
            for station, each in zip(stations, everyone, strict=True):
                if station.name in result.errors:
                    confirmed.append(replace(each, status="failed", reason=result.errors[station.name]))
                    continue
                figures = self._figures(station, station.rounds, latencies.get(station.name))
                speedup = result.ratios.get(each.id, Figure(1.0, "x", "measured", (1.0, 1.0)))
                verdict = verdicts.get(each.id)
                status, reason = ("ok", each.reason) if verdict is None else self._final(speedup, verdict, figures)
                confirmed.append(
                    replace(
                        each,
                        status=status,
                        reason=reason,
                        measurement=Measurement(figures, None if verdict is None else _quality(verdict)),
                        speedup=speedup,
                        rounds=tuple(zip(result.rounds[brought.id], result.rounds[each.id], strict=False)),
                        seconds_spent=each.seconds_spent + (self.clock() - start) / len(everyone),
                        final=True,
                    )
                )
        return confirmed

    def _final(self, speedup: Figure, verdict: Mapping[str, Any], figures: Mapping[str, Figure]) -> Any:
        """Rule 1: the interval above 1, every constraint held, quality shown non-inferior."""
        if speedup.ci95 is None or speedup.ci95[0] <= 1.0:
            low, high = speedup.ci95 or (0.0, 0.0)
            return "undecided", f"the improvement is not shown: {speedup.value:.2f}x, 95% interval {low:.2f} to {high:.2f}"
        if verdict["verdict"] == "inferior":
            return "rejected", f"quality: {verdict['text']}"
        if verdict["verdict"] == "undecided":
            return "undecided", f"quality: {verdict['text']}"
        missed = [c for c in self.goal.where if c.figure in figures and not c.holds(figures[c.figure].value)]
        if missed:
            found = ", ".join(f"{c.text} (found {figures[c.figure].value:.4g})" for c in missed)
            return "rejected", f"misses {found}"
        return "ok", ""

    def _latencies(self, stations: Sequence[Station]) -> dict[str, list[float]]:
        """Single-stream latencies, taken in turns, for scenarios whose rounds do not give them."""
        if self.workload.scenario == "single-stream":
            return {}
        if not any(c.figure.startswith("latency_ms") for c in self.goal.where):
            return {}
        found: dict[str, list[float]] = {station.name: [] for station in stations}
        for _ in range(3):
            for station in stations:
                answer = station.worker.call(
                    "hasten.measure.bench:round", {"scenario": "single-stream"}, station.timeout_s
                )
                found[station.name] += answer["latencies_ms"]
        return found

    # -- common ---------------------------------------------------------------------------------------------------

    def operators(self, recipe: Recipe) -> list[dict[str, Any]]:
        with _closing(self._open(recipe, self._scene)) as station:
            answer: list[dict[str, Any]] = station.worker.call("hasten.measure.bench:operators", {}, 120)
            return answer

    def close(self) -> None:
        self._stack.close()
        shutil.rmtree(self.workdir / "outputs", ignore_errors=True)

    def _open(self, recipe: Recipe, indices: Sequence[int]) -> Station:
        variant = self.build(recipe)
        worker = Worker(self.limits)
        try:
            opened = worker.call(
                "hasten.measure.bench:open",
                {
                    "variant": variant.to_json(),
                    "recipe": recipe.to_json(),
                    "signature": self.workload.to_json()["model"]["signature"],
                    "padding": self.workload.to_json()["padding"],
                    "samples": str(self.workload.samples.path),
                    "indices": list(indices),
                    "scenario": self.workload.scenario,
                },
                180,
            )
        except BaseException:
            worker.close()
            raise
        size = sum(part.facts.size_bytes for part in variant.parts.values())
        return Station(recipe.id, worker, self.goal, self.tariff, opened | {"size_bytes": size}, self._repeat)

    def _need_reference(self) -> Station:
        if self._reference is None:
            raise Failed("the lab was used before it was started")
        return self._reference

    def _need_baseline(self) -> Recipe:
        if self._baseline is None:
            raise Failed("the lab was used before it was started")
        return self._baseline

    def _figures(
        self, station: Station, rounds: Sequence[Mapping[str, Any]], latencies_ms: Sequence[float] | None = None
    ) -> dict[str, Figure]:
        return summarise(
            rounds,
            tariff=self.tariff,
            peak_memory_bytes=station.worker.peak_memory_bytes,
            size_bytes=station.opened["size_bytes"],
            latencies_ms=latencies_ms,
        )

    def _outputs_path(self, recipe: Recipe, stage: str) -> Path:
        folder = self.workdir / "outputs"
        folder.mkdir(exist_ok=True)
        return folder / f"{stage}-{recipe.id}.npz"


def quality_key(recipe: Recipe) -> str:
    """What of a recipe decides its outputs: the steps, the runtime with its precision, and how samples are padded."""
    runtime = {key: value for key, value in recipe.runtime.items() if key not in ("streams", "threads")}
    runner = {key: recipe.runner[key] for key in ("form",) if key in recipe.runner}
    return Recipe(recipe.steps, runtime, runner).id


class _closing:
    """A context that closes a station's worker."""

    def __init__(self, station: Station) -> None:
        self.station = station

    def __enter__(self) -> Station:
        return self.station

    def __exit__(self, *exc: object) -> None:
        self.station.worker.close()


def _quality(verdict: Mapping[str, Any]) -> Quality:
    def interval(pair: Sequence[float] | None) -> tuple[float, float] | None:
        return None if pair is None else (pair[0], pair[1])

    return Quality(
        verdict["metric"],
        Figure(verdict["value"], verdict["unit"], "measured", interval(verdict["value_ci"])),
        Figure(verdict["drop"], verdict["drop_unit"], "measured", interval(verdict["drop_ci"])),
        verdict["kind"],
        verdict["samples"],
    )


