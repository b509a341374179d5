"""A study: all trials of one workload and goal on one device."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hasten.device import Device
from hasten.goal import Goal
from hasten.measurement import Trial
from hasten.workload import Workload

SCHEMA = "hasten.study/1"


@dataclass(frozen=True)
class Study:
    """`best` and `pareto` name trials by id; `why` says in a sentence why `best` was chosen.

    `asked` is the id of the one recipe that was asked for, where a study only verifies that.
    """

    workload: Workload
    goal: Goal
    device: Device
    versions: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0
    trials: tuple[Trial, ...] = ()
    pareto: tuple[str, ...] = ()
    best_id: str = ""
    why: str = ""
    notes: tuple[str, ...] = ()
    profiles: Mapping[str, Any] = field(default_factory=dict)
    asked: str = ""

    @property
    def key(self) -> str:
        """sha256 of workload, goal without its budget, device fingerprint, versions, seed, and the recipe asked for."""
        goal = {name: value for name, value in self.goal.to_json().items() if name != "budget_s"}
        parts = [self.workload.sha256, goal, self.device.fingerprint, dict(self.versions), self.seed, self.asked]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def trial(self, trial_id: str) -> Trial:
        return next(trial for trial in self.trials if trial.id == trial_id)

    @property
    def baseline(self) -> Trial | None:
        """The model as the user brought it."""
        return next((trial for trial in self.trials if trial.origin == "brought"), None)

    @property
    def best(self) -> Trial | None:
        return next((trial for trial in self.trials if trial.id == self.best_id), None)

    def frame(self) -> list[dict[str, Any]]:
        """One flat row for each trial, ready for `pandas.DataFrame`."""
        return [
            {
                "id": trial.id,
                "recipe": trial.recipe.describe(),
                "status": trial.status,
                "reason": trial.reason,
                "speedup": None if trial.speedup is None else trial.speedup.value,
                **{name: figure.value for name, figure in trial.measurement.figures.items()},
                "quality": None if trial.measurement.quality is None else trial.measurement.quality.value.value,
                "drop": None if trial.measurement.quality is None else trial.measurement.quality.drop.value,
                "best": trial.id == self.best_id,
            }
            for trial in self.trials
        ]

    def to_json(self) -> dict[str, Any]:
        baseline = self.baseline
        return {
            "schema": SCHEMA,
            "key": self.key,
            "workload": self.workload.to_json(),
            "device": self.device.to_json(),
            "goal": self.goal.to_json(),
            "versions": dict(self.versions),
            "seed": self.seed,
            "baseline": None if baseline is None else baseline.to_json(),
            "trials": [trial.to_json() for trial in self.trials],
            "pareto": list(self.pareto),
            "best": self.best_id,
            "why": self.why,
            "notes": list(self.notes),
            "profiles": dict(self.profiles),
            "asked": self.asked,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Study:
        return cls(
            Workload.from_json(data["workload"]),
            Goal.from_json(data["goal"]),
            Device.from_json(data["device"]),
            dict(data["versions"]),
            data["seed"],
            tuple(Trial.from_json(trial) for trial in data["trials"]),
            tuple(data["pareto"]),
            data["best"],
            data["why"],
            tuple(data.get("notes", ())),
            dict(data.get("profiles", {})),
            data.get("asked", ""),
        )
