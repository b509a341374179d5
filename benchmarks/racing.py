"""Opens subjects in pinned workers of their own, and races them in alternating rounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hasten.device import Device
from hasten.isolate import Limits, Worker
from hasten.lab.race import Race, race
from hasten.measurement import Figure
from hasten.recipe import Recipe
from hasten.variant import Variant
from hasten.workload import Workload

CALL_S = 600.0


@dataclass(frozen=True)
class Subject:
    """What is raced: `module` has the worker functions `open`, `round` and `outputs` (see `hasten.measure.bench`).

    A round runs the scene `repeat` times.
    """

    name: str
    payload: Mapping[str, Any]
    module: str = "hasten.measure.bench"
    repeat: int = 1


@dataclass
class Contestant:
    """A subject that is open in its worker. A round gives samples a second."""

    name: str
    worker: Worker
    module: str
    opened: Mapping[str, Any] = field(default_factory=dict)
    repeat: int = 1

    def round(self) -> float:
        answer = self.worker.call(f"{self.module}:round", {"repeat": self.repeat}, CALL_S)
        return float(answer["count"] / answer["seconds"])

    def outputs(self, indices: Sequence[int], path: Path) -> Path:
        self.worker.call(f"{self.module}:outputs", {"indices": list(indices), "path": str(path)}, CALL_S)
        return path


def subject(
    name: str, variant: Variant, recipe: Recipe, workload: Workload, indices: Sequence[int] | None = None
) -> Subject:
    """A variant run by hasten's own runner on these samples of the workload (default: all of them)."""
    described = workload.to_json()
    payload = {
        "variant": variant.to_json(),
        "recipe": recipe.to_json(),
        "signature": described["model"]["signature"],
        "padding": described["padding"],
        "samples": str(workload.samples.path),
        "indices": list(range(workload.samples.count) if indices is None else indices),
        "scenario": workload.scenario,
    }
    return Subject(name, payload)


@contextmanager
def opened(subjects: Sequence[Subject], device: Device) -> Iterator[list[Contestant]]:
    """Every subject loaded and warm in a process of its own, all on the same cores."""
    with ExitStack() as stack:
        contestants = []
        for each in subjects:
            worker = stack.enter_context(Worker(Limits(cpus=device.cpus or None)))
            answer = worker.call(f"{each.module}:open", dict(each.payload), CALL_S)
            contestants.append(Contestant(each.name, worker, each.module, answer or {}, each.repeat))
        yield contestants


def first_over_others(
    contestants: Sequence[Contestant],
    budget_s: float,
    *,
    min_rounds: int = 8,
    max_rounds: int = 60,
    tolerance: float = 0.01,
    seed: int = 0,
    on_round: Callable[[int], None] | None = None,
) -> Race:
    """How many times faster the first contestant is than each other: `race.ratios` by the other's name."""
    return race(
        contestants,
        ratio=lambda first, other: first / other,
        clock=time.monotonic,
        budget_s=budget_s,
        min_rounds=min_rounds,
        max_rounds=max_rounds,
        tolerance=tolerance,
        seed=seed,
        on_round=on_round,
    )


def told(found: Race) -> str:
    """How the race went, for a figure's `how`."""
    rounds = min(len(values) for values in found.rounds.values())
    noisy = ", too noisy to tell 5%" if found.noisy else ""
    return f"{rounds} alternating rounds in separate processes on the same cores{noisy}"


def ratio(found: Race, name: str) -> Figure:
    """The ratio over `name`, or the reason why there is none as a `RuntimeError`."""
    if name in found.errors or name not in found.ratios:
        raise RuntimeError(f"{name} did not finish a round: {found.errors.get(name, 'nothing was raced')}")
    return found.ratios[name]
