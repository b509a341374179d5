"""Evaluates recipes on this machine: screens one beside the baseline, races finalists, confirms a winner.

`Lab` is what the search needs; `LocalLab` does it with worker processes. The lab knows nothing of levers: a function
`build(recipe) -> Variant` is handed to it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from hasten.costs.tariff import Tariff
from hasten.device import Device
from hasten.errors import Failed, HastenError
from hasten.events import Event, OnEvent, ignore
from hasten.goal import Goal
from hasten.isolate import Limits, Worker, WorkerFailed, run
from hasten.lab.race import Race, race
from hasten.lab.station import RESIDENT, Station
from hasten.measure.summary import summarise
from hasten.measurement import Figure, Measurement, Quality, Status, Trial
from hasten.recipe import Recipe
from hasten.variant import Variant
from hasten.workload import Split, Workload

ROUND_S = 0.5
"""A round of the baseline takes about this long: short rounds follow the machine's drift, long ones hide jitter."""
SCENE_ROUNDS = 8
"""The scene is this many baseline rounds long: variants are quicker, and sorting needs many samples to sort."""
SCENE_OFFLINE = (32, 256)
SCENE_SINGLE = (4, 64)
SCENE_GENERATE = (2, 64)
FEW = {"generate": 2, "encoder_decoder": 8}
"""Samples that tell the speed of a slow model as brought."""
GENERATE_ROWS, OPENING_S = 16, 20.0
"""Prompts that a variant may decode together, and the seconds that three workers take to load a language model."""
"""The least and the most samples of a scene; a round of the baseline takes at least the least."""
SCREEN_ROUNDS = 5
LEAST_ROUNDS, BASELINE_SHARE = 2, 0.1
"""A slow model as brought is given fewer rounds by itself: beside every trial it is run again."""
SCREEN_S = 5.0
QUALITY_S = 6.0
"""Screening spends about this long on the baseline's outputs, confirming the given share of its time, or so long."""
VERIFY_SHARE = 0.35
VERIFY_S = 15.0
RACE_SHARE = 0.45
"""Of the time to confirm, so much goes to rounds; the rest to opening, verifying and judging."""
CONFIRM_ROUNDS, SLOW_ROUNDS = 6, 4
"""A slow baseline is given fewer rounds over more samples: batches sorted by length need many to be full."""
RESIDENT_AGAIN = 2
UNLIKELY = 0.8416 / 1.6449
"""The one-sided 80% bound lies at this share of the distance of the 95% bound."""
PROFILE_SAMPLES = 32
PROFILE_S = 0.25
"""A batch of the model as brought takes about this long at most in a profile, which runs it a dozen times."""
ONE = Figure(1.0, "x", "measured", (1.0, 1.0))


class Lab(Protocol):
    """What a search asks of a lab. `start` comes first; a bad recipe becomes a failed trial, never an exception."""

    def clock(self) -> float: ...
    def start(self, recipe: Recipe) -> None: ...
    def baseline(self) -> Trial: ...
    def screen(self, recipe: Recipe, origin: str = "search", why: str = "") -> Trial: ...
    def race(self, recipes: Sequence[Recipe], budget_s: float) -> dict[str, Figure]: ...
    def final_s(self) -> float: ...
    def confirm(self, trial: Trial, beside: Sequence[Trial], budget_s: float) -> list[Trial]: ...
    def operators(self, recipe: Recipe) -> list[dict[str, Any]]: ...
    def profile(self, recipe: Recipe) -> dict[str, Any]: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class Expected:
    """Where the baseline's outputs are, and of how many samples of the pool."""

    path: Path
    count: int


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

    def __post_init__(self) -> None:
        self.workdir.mkdir(parents=True, exist_ok=True)
        self._stack = ExitStack()
        self._reference: Station | None = None
        self._baseline: Recipe | None = None
        self._scene: tuple[int, ...] = ()
        self._limit: int | None = None
        self._repeat = 1
        self._per_sample_s = 1e-3
        self._verdicts: dict[str, dict[str, Any]] = {}
        self._answers: dict[str, Expected] = {}

    def clock(self) -> float:
        return time.monotonic()

    def close(self) -> None:
        self._stack.close()
        shutil.rmtree(self.workdir / "outputs", ignore_errors=True)

    def ratio(self, baseline: float, variant: float) -> float:
        """The improvement of one round; goals that rounds do not show are raced by throughput."""
        return variant / baseline if self.goal.figure in RESIDENT else self.goal.ratio(baseline, variant)

    # -- the baseline ---------------------------------------------------------------------------------------------

    def start(self, recipe: Recipe) -> None:
        """Open the model as brought, size the scene by its speed, and keep it open beside every later trial."""
        self._baseline = recipe
        self._size_scene(recipe, self.build(recipe))
        self._reference = self._stack.enter_context(self._open(recipe, self._scene, limit=self._limit))

    def baseline(self) -> Trial:
        """The figures of the model as brought; its speed-up is 1 by definition."""
        start = self.clock()
        reference, recipe = self._started()
        reference.rounds = []
        for number in range(SCREEN_ROUNDS):
            if number >= LEAST_ROUNDS and self.clock() - start > BASELINE_SHARE * self.goal.budget_s:
                break
            reference.round()
        measurement = Measurement(self.figures(reference))
        each = sorted(answer["seconds"] / max(1, answer["count"]) for answer in reference.rounds)
        self._per_sample_s = max(self._per_sample_s, each[len(each) // 2])  # whole batches hold more padding than few
        spent = self.clock() - start
        return Trial(
            recipe.id, recipe, "ok", "the model as brought", measurement, ONE, seconds_spent=spent, origin="brought"
        )

    def _size_scene(self, recipe: Recipe, variant: Variant) -> None:
        """Take selection samples for several rounds of the baseline; where there are few, repeat them to fill a round.

        Beside a trial the baseline runs only the first `_limit` samples of the scene, so that a slow one does not eat
        the budget; the race and the confirmation run all of it.
        """
        pool = self.split.selection
        few = min(len(pool), FEW.get(self.workload.program, 16))
        with self._open(recipe, pool[:few], variant) as probe:
            self._per_sample_s = max(1e-6, probe.opened["round_s"] / few)
        generates = self.workload.program != "single"
        least, most = SCENE_SINGLE if self.workload.scenario == "single-stream" else SCENE_OFFLINE
        if generates:
            least, most = SCENE_GENERATE
        fill = ROUND_S / self._per_sample_s
        # Sorting by length, and decoding together, need many samples, however slow the baseline.
        varied = bool(self.workload.padding) or generates
        self._scene = pool[: most if varied else max(least, min(most, int(fill * SCENE_ROUNDS)))]
        self._limit = min(len(self._scene), max(least, int(fill)))
        self._repeat = max(1, round(fill / self._limit))

    def _limit_of(self, recipe: Recipe) -> int | None:
        """How many samples a round of this recipe takes: a whole batch at least."""
        if self._limit is None:
            return None
        return min(len(self._scene), max(self._limit, int(recipe.runner.get("batch", 1))))

    # -- screening ------------------------------------------------------------------------------------------------

    def screen(self, recipe: Recipe, origin: str = "search", why: str = "") -> Trial:
        """A few alternating rounds beside the baseline, and the quality on the selection samples."""
        start = self.clock()
        trial = Trial(recipe.id, recipe, "failed", origin=origin, why=why)  # type: ignore[arg-type]
        try:
            trial = self._screened(trial)
        except WorkerFailed as error:
            trial = replace(trial, reason=error.outcome.reason, stderr=error.outcome.stderr[-2000:])
        except HastenError as error:
            trial = replace(trial, reason=error.cause)
        return replace(trial, seconds_spent=self.clock() - start)

    def _screened(self, trial: Trial) -> Trial:
        reference, _ = self._started()
        with self._open(trial.recipe, self._scene, limit=self._limit_of(trial.recipe)) as station:
            station.lengthen(len(self._scene), ROUND_S * 2)
            result = self._look([reference, station])
            found = result.ratios.get(station.name)
            if found is not None and _wide(found):  # the machine was busy with something else: look once more
                result = self._look([reference, station])
                found = result.ratios.get(station.name)
            speedup = self.settled(found, reference, station, "; ".join(result.errors.values()))
            verdict = self._screen_quality(trial.recipe, station)
            figures = self.figures(station)
            stderr = station.worker.stderr[-2000:]
        status, reason = self._judge(speedup, verdict, figures)
        return replace(
            trial,
            status=status,
            reason=reason,
            measurement=Measurement(figures, as_quality(verdict)),
            speedup=speedup,
            rounds=result.pairs(station.name),
            stderr=stderr,
        )

    def _look(self, contestants: Sequence[Station]) -> Race:
        return race(
            contestants,
            ratio=self.ratio,
            clock=self.clock,
            budget_s=SCREEN_S,
            min_rounds=3,
            max_rounds=SCREEN_ROUNDS,
            seed=self.seed,
        )

    def _judge(self, speedup: Figure, verdict: Mapping[str, Any], figures: Mapping[str, Figure]) -> tuple[Status, str]:
        """Screening only rejects what is clearly out; the race and the confirmation decide."""
        if verdict["verdict"] == "inferior" or self._unlikely(verdict):
            return "rejected", f"quality: {verdict['text']}"
        if speedup.ci95 and speedup.ci95[1] < 1.0:
            return "rejected", f"slower than the model as brought: {speedup.value:.2f}x"
        missed = [c.text for c in self.goal.where if c.figure in figures and not c.holds(figures[c.figure].value)]
        if missed:
            return "rejected", f"misses {', '.join(missed)}"
        return "ok", ""

    def _unlikely(self, verdict: Mapping[str, Any]) -> bool:
        """Whether, with 80% confidence, more is lost than is allowed: more samples would hardly show otherwise."""
        drop, bound = verdict["drop"], verdict["drop_bound"]
        return bound is not None and drop - (bound - drop) * UNLIKELY > self.goal.max_drop.amount

    def _screen_quality(self, recipe: Recipe, station: Station) -> Mapping[str, Any]:
        """Execution settings do not change what is computed: recipes alike in the rest share one verdict."""
        key = quality_key(recipe)
        if key not in self._verdicts:
            expected = self._expected("selection", self.split.selection, QUALITY_S)
            path = self._outputs_path(recipe, "selection")
            indices = self.split.selection[: expected.count]
            station.outputs(indices, path)
            self._verdicts[key] = self._evaluate(expected.path, path, indices)
        return self._verdicts[key]

    def _expected(self, stage: str, pool: Sequence[int], seconds: float) -> Expected:
        """The outputs of the model as brought on as many samples as fit into `seconds`, computed once.

        Its batches are sorted by length where padding is verified to change nothing: that is quicker, and the same.
        """
        if stage not in self._answers:
            _, baseline = self._started()
            padding = self.workload.padding
            recipe = baseline.edit("runner", sort=True) if padding is not None and padding.verified else baseline
            path = self._outputs_path(baseline, stage)
            with self._open(recipe, pool[:1]) as station:
                self._answers[stage] = Expected(path, station.outputs(pool, path, seconds))
        return self._answers[stage]

    def final_s(self) -> float:
        """The seconds that a confirmation takes at least, where they are many: its rounds, and opening its workers."""
        if self.workload.program == "single":
            return 0.0
        rows = GENERATE_ROWS if self.workload.program == "generate" else FEW[self.workload.program]
        return SLOW_ROUNDS * rows * self._per_sample_s * 1.5 + VERIFY_S + OPENING_S

    # -- racing and confirming ------------------------------------------------------------------------------------

    def race(self, recipes: Sequence[Recipe], budget_s: float) -> dict[str, Figure]:
        """Alternate the baseline and the finalists in fresh workers; a ratio for each that lived through it."""
        with ExitStack() as stack:
            reference, _ = self._started()
            contestants = [reference]
            for recipe in recipes:
                try:
                    station = stack.enter_context(self._open(recipe, self._scene, limit=self._limit_of(recipe)))
                except HastenError:
                    continue
                station.lengthen(len(self._scene), ROUND_S * 2)
                contestants.append(station)
            if len(contestants) == 1:
                return {}
            result = race(
                contestants,
                ratio=self.ratio,
                clock=self.clock,
                budget_s=budget_s,
                eliminate=self.goal.figure not in RESIDENT,
                seed=self.seed,
                on_round=lambda number: self.on_event(Event("round", f"round {number} of the final race")),
            )
            return {
                station.name: self.settled(result.ratios[station.name], reference, station)
                for station in contestants[1:]
                if station.name in result.ratios and station.name not in result.errors
            }

    def confirm(self, trial: Trial, beside: Sequence[Trial], budget_s: float) -> list[Trial]:
        """Fresh workers, the verification samples, and fresh rounds, for the winner and the baselines beside it.

        The first of `beside` is the model as brought. Where the winner's quality does not hold it is returned alone:
        nothing is timed. Else every one of them is, timed anew, in that order with the winner last, whose status says
        whether it holds; where it is no faster, those between are judged as it was.
        """
        start = self.clock()
        brought, *others = beside
        everyone = [brought, *(other for other in others if other.id != trial.id), trial]
        weight = sum(1 / each.speedup.value if each.speedup else 1.0 for each in everyone)
        expected = self._expected(
            "verification", self.split.verification, max(VERIFY_S, budget_s * VERIFY_SHARE / weight)
        )
        most = int(budget_s * RACE_SHARE / SLOW_ROUNDS / self._per_sample_s / weight)
        least = max(self._limit_of(each.recipe) or 1 for each in everyone)
        scene = self.split.verification[: max(1, min(len(self._scene), max(least, most)))]
        with ExitStack() as stack:

            def fresh(each: Trial) -> Station:
                return stack.enter_context(self._open(each.recipe, scene, limit=self._limit_of(each.recipe)))

            winner = fresh(trial)
            verdict = self._verified(trial, winner, expected)
            lost = _lost(verdict)
            if lost is not None:
                status, reason = lost
                measurement = replace(trial.measurement, quality=as_quality(verdict))
                spent = trial.seconds_spent + self.clock() - start
                return [
                    replace(
                        trial, status=status, reason=reason, measurement=measurement, seconds_spent=spent, final=True
                    )
                ]
            stations = [*map(fresh, everyone[:-1]), winner]
            for station in stations:
                station.limit = None
            result = race(
                stations,
                ratio=self.ratio,
                clock=self.clock,
                budget_s=budget_s * RACE_SHARE,
                least_rounds=SLOW_ROUNDS,
                min_rounds=CONFIRM_ROUNDS,
                seed=self.seed + 1,
                on_round=lambda number: self.on_event(Event("round", f"round {number} of the confirmation")),
            )
            if trial.id in result.errors or trial.id not in result.ratios:
                raise Failed(f"failed while it was confirmed: {result.errors.get(trial.id, 'the baseline failed')}")
            latencies = self._latencies(stations)
            confirmed: list[Trial] = []
            # The winner first: only where it is no faster are the others asked for their outputs, which cost a pass.
            for station, each in reversed([*zip(stations, everyone, strict=True)]):
                if each.id in result.errors:
                    confirmed.insert(0, replace(each, status="failed", reason=result.errors[each.id]))
                    continue
                figures = self.figures(station, latencies.get(each.id))
                speedup, status, reason = ONE, each.status, each.reason
                quality = each.measurement.quality
                asked = each is trial or (each is not brought and confirmed[-1].status != "ok")
                if each is brought:
                    indices = self.split.verification[: expected.count]
                    quality = as_quality(self._evaluate(expected.path, expected.path, indices))
                elif self.goal.figure in RESIDENT and asked:
                    speedup = self._resident_again(stations[0], station, (brought.recipe, each.recipe))
                else:
                    speedup = self.settled(result.ratios[each.id], stations[0], station)
                if asked:
                    found = verdict if each is trial else self._verified(each, station, expected)
                    quality = as_quality(found)
                    status, reason = self._final(speedup, found, figures)
                confirmed.insert(
                    0,
                    replace(
                        each,
                        status=status,
                        reason=reason,
                        measurement=Measurement(figures, quality),
                        speedup=speedup,
                        rounds=result.pairs(each.id),
                        seconds_spent=each.seconds_spent + (self.clock() - start) / len(everyone),
                        final=True,
                    ),
                )
        return confirmed

    def _verified(self, trial: Trial, station: Station, expected: Expected) -> dict[str, Any]:
        """How the outputs for the verification samples compare with those of the model as brought."""
        indices = self.split.verification[: expected.count]
        path = self._outputs_path(trial.recipe, "verification")
        station.outputs(indices, path)
        return self._evaluate(expected.path, path, indices)

    def _final(self, speedup: Figure, verdict: Mapping[str, Any], figures: Mapping[str, Figure]) -> tuple[Status, str]:
        """Rule 1: the interval above 1, every constraint held, quality shown non-inferior."""
        if speedup.ci95 is None:
            return (
                "undecided",
                f"the improvement is not shown: {speedup.value:.2f}x, and there was time for one round only",
            )
        low, high = speedup.ci95
        if low <= 1.0:
            found = f"{speedup.value:.2f}x, 95% interval {low:.2f} to {high:.2f}"
            return "undecided", f"the improvement is not shown: {found}"
        lost = _lost(verdict)
        if lost is not None:
            return lost
        missed = [c for c in self.goal.where if c.figure in figures and not c.holds(figures[c.figure].value)]
        if missed:
            found = ", ".join(f"{c.text} (found {figures[c.figure].value:.4g})" for c in missed)
            return "rejected", f"misses {found}"
        return "ok", ""

    def _latencies(self, stations: Sequence[Station]) -> dict[str, list[float]]:
        """Single-stream latencies, taken in turns, where bounds need them and rounds do not give them."""
        if self.workload.scenario == "single-stream":
            return {}
        if not any(c.figure.startswith("latency_ms") for c in self.goal.where):
            return {}
        found: dict[str, list[float]] = {station.name: [] for station in stations}
        for _ in range(3):
            for station in stations:
                found[station.name] += station.latencies()
        return found

    # -- comparing two subjects -----------------------------------------------------------------------------------

    def open_pair(
        self, stack: ExitStack, recipe_a: Recipe, a: Variant, recipe_b: Recipe, b: Variant
    ) -> tuple[Station, Station]:
        """Open two subjects, named "a" and "b", on the same scene; it is sized by the first."""
        self._size_scene(recipe_a, a)
        first = stack.enter_context(self._open(recipe_a, self._scene, a))
        second = stack.enter_context(self._open(recipe_b, self._scene, b))
        first.name, second.name = "a", "b"
        return first, second

    def quality_beside(self, a: Station, b: Station) -> dict[str, Any]:
        """B's quality beside A's on the selection samples."""
        folder = self.workdir / "outputs"
        folder.mkdir(exist_ok=True)
        count = a.outputs(self.split.selection, folder / "a.npz", QUALITY_S)
        indices = self.split.selection[:count]
        b.outputs(indices, folder / "b.npz")
        return self._evaluate(folder / "a.npz", folder / "b.npz", indices)

    # -- common ---------------------------------------------------------------------------------------------------

    def operators(self, recipe: Recipe) -> list[dict[str, Any]]:
        with self._open(recipe, self._scene[: self._limit]) as station:
            return station.operators()

    def profile(self, recipe: Recipe) -> dict[str, Any]:
        """Where the time of this recipe goes, as `hasten profile` writes it."""
        from hasten.diagnose.profile import SPEND_S, profile

        limits = Limits(self.memory_bytes, 300, self.device.cpus or None)
        few = int(recipe.runner.get("batch", PROFILE_SAMPLES))
        slow = recipe == self._baseline and few * self._per_sample_s > PROFILE_S
        if slow and not recipe.runner.get("form"):  # its operators share the time alike in smaller batches
            few = max(1, int(PROFILE_S / self._per_sample_s))
            recipe = recipe.edit("runner", batch=few)
        found = profile(
            self.build(recipe),
            recipe,
            self.workload,
            self.device,
            samples_limit=min(few, PROFILE_SAMPLES),
            limits=limits,
            spend_s=max(0.1, min(SPEND_S, self.goal.budget_s / 100)),  # a short study ends soon after its budget
        )
        return found.to_json()

    def figures(self, station: Station, latencies_ms: Sequence[float] | None = None) -> dict[str, Figure]:
        return summarise(
            station.rounds,
            tariff=self.tariff,
            peak_memory_bytes=station.worker.peak_memory_bytes,
            size_bytes=station.size_bytes,
            device_memory_bytes=station.opened.get("device_memory_bytes"),
            latencies_ms=latencies_ms,
        )

    def settled(self, raced: Figure | None, baseline: Station, station: Station, error: str | None = None) -> Figure:
        """The goal's improvement: what the rounds gave, or, for memory and size, what the processes came to."""
        if self.goal.figure in RESIDENT:
            return self._resident([baseline], [station])
        if raced is None:
            raise Failed(error or "nothing was raced")
        return raced

    def _resident(self, baselines: Sequence[Station], stations: Sequence[Station]) -> Figure:
        """The ratio of medians over processes, and between the least and the largest that any two of them give."""
        before = sorted(each.resident(self.goal.figure) for each in baselines)
        after = sorted(each.resident(self.goal.figure) for each in stations)
        value = self.goal.ratio(before[len(before) // 2], after[len(after) // 2])
        ends = (self.goal.ratio(before[0], after[-1]), self.goal.ratio(before[-1], after[0]))
        return Figure(value, "x", f"measured: {len(after)} processes each, with their range", ends)

    def _resident_again(self, baseline: Station, station: Station, recipes: tuple[Recipe, Recipe]) -> Figure:
        """Memory differs from process to process: open both twice more, run a round, and take all three."""
        sides: list[list[Station]] = [[baseline], [station]]
        for _ in range(RESIDENT_AGAIN if self.goal.figure == "peak_memory_mb" else 0):
            for side, recipe in zip(sides, recipes, strict=True):
                with self._open(recipe, self.split.verification[: max(1, len(self._scene))]) as fresh:
                    fresh.round()
                side.append(fresh)
        return self._resident(*sides)

    def _evaluate(self, expected: Path, path: Path, indices: Sequence[int]) -> dict[str, Any]:
        answer: dict[str, Any] = run(
            "hasten.measure.quality:evaluate",
            {
                "metric": self.workload.metric,
                "baseline": str(expected),
                "variant": str(path),
                "labels": str(self.workload.samples.path),
                "indices": list(indices),
                "output": self.workload.output,
                "max_drop": str(self.goal.max_drop),
                "seed": self.seed,
            },
            Limits(seconds=300),
        )
        return answer

    def _open(
        self, recipe: Recipe, indices: Sequence[int], variant: Variant | None = None, limit: int | None = None
    ) -> Station:
        variant = variant or self.build(recipe)
        workload = self.workload.to_json()
        payload = {
            "variant": variant.to_json(),
            "recipe": recipe.to_json(),
            "signature": workload["model"]["signature"],
            "padding": workload["padding"],
            "samples": str(self.workload.samples.path),
            "indices": list(indices),
            "scenario": self.workload.scenario,
        }
        worker = Worker(Limits(memory_bytes=self.memory_bytes, cpus=self.device.cpus or None))
        size = sum(part.facts.size_bytes for part in variant.parts.values())
        return Station.open(recipe.id, worker, payload, self.goal, self.tariff, size, self._repeat, limit)

    def _started(self) -> tuple[Station, Recipe]:
        """The baseline's station, opened again if its worker was lost, and its recipe."""
        if self._reference is None or self._baseline is None:
            raise Failed("the lab was used before it was started")
        if not self._reference.worker.alive:
            self._reference = self._stack.enter_context(self._open(self._baseline, self._scene, limit=self._limit))
        return self._reference, self._baseline

    def _outputs_path(self, recipe: Recipe, stage: str) -> Path:
        folder = self.workdir / "outputs"
        folder.mkdir(exist_ok=True)
        return folder / f"{stage}-{recipe.id}.npz"


def _lost(verdict: Mapping[str, Any]) -> tuple[Status, str] | None:
    """The status of a variant whose quality was not shown to be held, and why; None where it was."""
    statuses: dict[str, Status] = {"inferior": "rejected", "undecided": "undecided"}
    status = statuses.get(verdict["verdict"])
    return None if status is None else (status, f"quality: {verdict['text']}")


def _wide(found: Figure) -> bool:
    """Whether the interval of a ratio is wider than half of it."""
    return found.ci95 is not None and (found.ci95[1] - found.ci95[0]) > 0.5 * found.value


def quality_key(recipe: Recipe) -> str:
    """What of a recipe decides its outputs: steps, runtime and precision, padding, and answers of similar inputs."""
    runtime = {key: value for key, value in recipe.runtime.items() if key not in ("streams", "threads")}
    runner = {key: recipe.runner[key] for key in ("form", "margin_s", "step_s") if key in recipe.runner}
    cache = recipe.cache if recipe.cache.get("kind") == "semantic" else {}
    return Recipe(recipe.steps, runtime, runner, cache).id


def as_quality(verdict: Mapping[str, Any]) -> Quality:
    """The quality of an answer of `measure.quality:evaluate`."""

    def interval(pair: Sequence[float] | None) -> tuple[float, float] | None:
        return None if pair is None else (pair[0], pair[1])

    return Quality(
        verdict["metric"],
        Figure(verdict["value"], verdict["unit"], "measured", interval(verdict["value_ci"])),
        Figure(verdict["drop"], verdict["drop_unit"], "measured", interval(verdict["drop_ci"])),
        verdict["kind"],
        verdict["samples"],
        verdict["drop_bound"],
        verdict["baseline_value"],
    )
