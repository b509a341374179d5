"""Runs a typical batch in a worker; reports operator times, and the batch's time as a whole and in the session."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hasten.diagnose.decoding import observe_step
from hasten.errors import InvalidInput
from hasten.isolate import Scope
from hasten.measurement import Figure
from hasten.model import Model
from hasten.recipe import Recipe
from hasten.runtimes import DEFAULT_RUNTIMES, Availability, OperatorTime, Runtime, Session, Settings, runtime
from hasten.variant import Variant
from hasten.workload import Workload

if TYPE_CHECKING:
    import numpy as np

    from hasten.runner.generate import Generator

    Batch = Mapping[str, np.ndarray]

SPEND_S = 1.5
"""About how long each of the three parts (whole runs, session alone, operators) may take, where nobody says."""
MOST, LEAST = 100, 3


def observe(payload: dict[str, Any], scope: Scope) -> dict[str, Any]:
    """The JSON of `diagnose.profile.Observation`.

    `payload`: variant, recipe, workload, samples_limit, seed, spend_s. A response cache in the recipe is left out: what
    it answers takes no operator's time.
    """
    from hasten.data import SampleSet
    from hasten.runner import open_runner

    workload = Workload.from_json(payload["workload"])
    variant = Variant.from_json(payload["variant"])
    recipe = replace(Recipe.from_json(payload["recipe"]), cache={})
    everything = SampleSet.open(Path(workload.samples.path))
    batch = int(recipe.runner.get("batch", 1))
    chosen = workload.split(payload["seed"]).selection or range(len(everything))
    samples = [everything[i] for i in chosen[: max(payload["samples_limit"], batch)]]
    if not samples:
        raise InvalidInput("there is no sample to run", "give data with at least one sample")
    name = recipe.runtime.get("name") or DEFAULT_RUNTIMES.get(variant.main.format, "")
    watch = Watch(runtime(name), payload["spend_s"])
    scope.progress(0.0, "loading")
    if workload.program == "generate":
        scope.progress(0.2, "decoding")
        with open_runner(variant, recipe, workload.model.signature, None) as generator:
            return observe_step(cast("Generator", generator), samples)
    with open_runner(variant, recipe, workload.model.signature, workload.padding, runtime=watch) as runner:
        runner.warm(samples)
        scope.progress(0.2, "running whole batches")
        io_share = _io_share(runner, samples, watch)
        scope.progress(0.5, "timing operators")
        times = runner.operators(samples)
    shapes = watch.shapes
    session = _typical(watch.alone, "us")
    factor = 1 / (1 - io_share)
    wall = Figure(
        session.value * factor,
        "us",
        "measured: session time of one batch, and the share that the runner adds over all batches",
        None if session.ci95 is None else (session.ci95[0] * factor, session.ci95[1] * factor),
    )
    rows = [
        shapes[name][0] for name, array in samples[0].items() if name in shapes and len(shapes[name]) == array.ndim + 1
    ]
    return {
        "times": [asdict(each) for each in times],
        "wall_us": wall.to_json(),
        "session_us": session.to_json(),
        "batch": rows[0] if rows else 1,
        "shapes": {name: list(shape) for name, shape in shapes.items()},
    }


@dataclass
class Watch:
    """A runtime that passes everything on, one batch at a time, and keeps the time that its sessions took.

    `alone` (microseconds of single runs) and `shapes` belong to the batch whose operators were asked for.
    """

    inner: Runtime
    spend_s: float = SPEND_S
    inside_s: float = 0.0
    alone: list[float] = field(default_factory=list)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.name, self.accepts, self.precisions = self.inner.name, self.inner.accepts, self.inner.precisions

    def availability(self) -> Availability:
        return self.inner.availability()

    def load(self, model: Model, settings: Settings) -> Session:
        return WatchedSession(self, self.inner.load(model, settings))


@dataclass
class WatchedSession:
    """A session under watch. `submit` runs at once: batches side by side would hide each other's time."""

    watch: Watch
    inner: Session

    def run(self, batch: Batch) -> dict[str, np.ndarray]:
        start = time.perf_counter()
        try:
            return self.inner.run(batch)
        finally:
            self.watch.inside_s += time.perf_counter() - start

    def submit(self, batch: Batch) -> Future[dict[str, np.ndarray]]:
        done: Future[dict[str, np.ndarray]] = Future()
        try:
            done.set_result(self.run(batch))
        except Exception as error:
            done.set_exception(error)
        return done

    def operators(self, batch: Batch, repeats: int = 10) -> list[OperatorTime]:
        watch = self.watch
        watch.shapes = {name: tuple(array.shape) for name, array in batch.items()}
        self._alone(batch)
        typical_s = sorted(watch.alone)[len(watch.alone) // 2] / 1e6
        found = self.inner.operators(batch, max(LEAST, min(MOST, int(watch.spend_s / max(typical_s, 1e-9)))))
        # Half of the plain runs after the profiled ones: a machine that slows down meanwhile slows both.
        self._alone(batch)
        return found

    def _alone(self, batch: Batch) -> None:
        until = time.perf_counter() + self.watch.spend_s / 2
        times: list[float] = []
        while len(times) < LEAST or (len(times) < MOST and time.perf_counter() < until):
            start = time.perf_counter()
            self.inner.run(batch)
            times.append((time.perf_counter() - start) * 1e6)
        self.watch.alone += times

    def close(self) -> None:
        self.inner.close()


def _io_share(runner: Any, samples: list[Any], watch: Watch) -> float:
    """The share of whole runs that is spent outside sessions, the median of a few runs."""
    shares: list[float] = []
    until = time.perf_counter() + watch.spend_s
    while not shares or (len(shares) < 7 and time.perf_counter() < until):
        watch.inside_s = 0.0
        start = time.perf_counter()
        runner.run(samples)
        whole = time.perf_counter() - start
        shares.append(max(0.0, 1 - watch.inside_s / whole) if whole > 0 else 0.0)
    return min(0.999, sorted(shares)[len(shares) // 2])


def _typical(microseconds: list[float], unit: str) -> Figure:
    from hasten.measure.intervals import percentile_interval

    return percentile_interval(microseconds, 0.5).figure(unit, f"measured: median of {len(microseconds)} runs")
