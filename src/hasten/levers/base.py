"""The protocol of levers: `propose` recipes worth trying, and `apply` a step to a variant.

Order of calls: the search gathers what `needs` names, builds a `Case`, and calls `propose` in its own process: it is
pure, quick, and imports no heavy library. If a proposed recipe has steps, `apply` is called for each in order, in a
worker process, where a lever may import what it wraps; it writes its files under `case.workdir` and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

from hasten.device import Device
from hasten.errors import InvalidInput
from hasten.goal import Goal
from hasten.measurement import Trial
from hasten.model import Operator
from hasten.recipe import Recipe, Step
from hasten.variant import Program, Variant
from hasten.workload import Split, Workload


class Need(StrEnum):
    """What a lever must have before it can propose or apply."""

    CALIBRATION = "calibration"
    LABELS = "labels"
    SENSITIVITY = "sensitivity"
    TORCH = "torch"
    TRAINING = "training"


@dataclass(frozen=True)
class Prediction:
    """The factor by which the goal's figure should improve over `case.recipe` (above 1 is better), and from what."""

    factor: float
    source: str


@dataclass(frozen=True)
class Proposal:
    """A recipe worth trying: `case.recipe` with steps appended and/or `[runtime]`, `[runner]`, `[cache]` edited.

    One that is `late` waits until all else was tried, as it seldom wins: it takes only time that is left.
    """

    recipe: Recipe
    gain: Prediction
    why: str
    lever: str
    late: bool = False


@dataclass(frozen=True)
class Case:
    """What a lever may look at.

    `operators` is the model's arithmetic for a typical sample (empty where it is not known); `profile` maps an operator
    kind to its share of time in the trial of `recipe`, or of its nearest measured ancestor; `lengths` are the samples'
    sizes along the variable axis (empty when fixed), `duplicates` the share of them that repeat an earlier one,
    `shared` how much of a text is, on average, how the one before it began, and `nearest` how far samples are from the
    nearest before them (sorted, without repeats; see `runner.alike`);
    `trials` is what is known so far; `sensitivity` is the table of `levers.sensitivity`, once measured.
    """

    workload: Workload
    goal: Goal
    device: Device
    recipe: Recipe
    workdir: Path
    split: Split
    operators: Sequence[Operator] = ()
    profile: Mapping[str, float] = field(default_factory=dict)
    lengths: Sequence[int] = ()
    duplicates: float = 0.0
    shared: float = 0.0
    nearest: Sequence[float] = ()
    runtimes: Sequence[str] = ()
    trials: Sequence[Trial] = ()
    sensitivity: Mapping[str, Any] | None = None
    seed: int = 0

    def to_json(self) -> dict[str, Any]:
        """What `apply` needs in a worker: everything but the profile, the operators and the trials."""
        return {
            "workload": self.workload.to_json(),
            "goal": self.goal.to_json(),
            "device": self.device.to_json(),
            "recipe": self.recipe.to_json(),
            "workdir": str(self.workdir),
            "split": [list(self.split.calibration), list(self.split.selection), list(self.split.verification)],
            "lengths": list(self.lengths),
            "seed": self.seed,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Case:
        calibration, selection, verification = (tuple(part) for part in data["split"])
        return cls(
            Workload.from_json(data["workload"]),
            Goal.from_json(data["goal"]),
            Device.from_json(data["device"]),
            Recipe.from_json(data["recipe"]),
            Path(data["workdir"]),
            Split(calibration, selection, verification),
            lengths=tuple(data["lengths"]),
            seed=data["seed"],
        )


class Lever(Protocol):
    """One technique. `propose` yields best first and nothing that `case.recipe` already has.

    A lever that is for more than single models says so in `programs` (see `programs_of`).
    """

    name: str
    needs: frozenset[Need]

    def propose(self, case: Case) -> Iterable[Proposal]: ...
    def apply(self, variant: Variant, step: Step, case: Case) -> Variant: ...


def programs_of(lever: Lever) -> frozenset[Program]:
    """The programs that a lever's proposals fit: single models, where it says nothing else."""
    found: frozenset[Program] = getattr(lever, "programs", frozenset({"single"}))
    return found


@cache
def all_levers() -> Mapping[str, Lever]:
    """Every registered lever by name; a broken plugin is left out with a warning."""
    import warnings

    found: dict[str, Lever] = {}
    for entry in entry_points(group="hasten.levers"):
        try:
            found[entry.name] = entry.load()()
        except Exception as error:  # a stranger's plugin must not stop the others
            warnings.warn(f"lever plugin {entry.name} ({entry.value}) is broken: {error}", stacklevel=2)
    return found


def lever(name: str) -> Lever:
    known = all_levers()
    if name not in known:
        raise InvalidInput(f"there is no lever called {name!r}", f"use one of: {', '.join(sorted(known))}")
    return known[name]


class SettingsLever:
    """A base for levers that only edit `[runtime]`, `[runner]` or `[cache]`: their recipes carry no step."""

    name: str = ""
    needs: frozenset[Need] = frozenset()
    programs: frozenset[Program] = frozenset({"single"})

    def apply(self, variant: Variant, step: Step, case: Case) -> Variant:
        raise InvalidInput(
            f"lever {self.name} edits settings and cannot be a [[step]]",
            "remove the step and write its settings under [runtime], [runner] or [cache]",
        )
