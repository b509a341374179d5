"""Measuring the model as brought takes a small share of the budget, however slow the model is."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hasten.costs.tariff import Tariff
from hasten.device import Device
from hasten.goal import Goal
from hasten.lab.trial import LocalLab
from hasten.recipe import Recipe
from hasten.workload import Split


class Lab(LocalLab):
    """A lab with a clock of its own, in which a round of the model as brought takes `round_s`."""

    now = 0.0
    round_s = 0.0

    def clock(self) -> float:
        return self.now

    def _started(self) -> Any:
        station = SimpleNamespace(rounds=[], worker=SimpleNamespace(peak_memory_bytes=1), size_bytes=1)

        def round_() -> None:
            self.now += self.round_s
            station.rounds.append({"seconds": self.round_s, "count": 32})

        station.round = round_
        self.station = station
        return station, Recipe()

    def figures(self, station: Any, latencies_ms: Any = None) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize(("round_s", "rounds"), [(0.5, 5), (3.0, 4), (16.0, 2)])
def test_a_slow_model_as_brought_is_given_fewer_rounds(tmp_path: Path, round_s: float, rounds: int) -> None:
    workload: Any = None
    build: Any = None
    tariff: Any = Tariff
    goal = Goal.parse("throughput", "1pt", (), 90.0)
    lab = Lab(workload, goal, Device("fake"), Split((0,), (1,), (2,)), tmp_path, build, tariff)
    lab.round_s = round_s
    lab.baseline()
    assert len(lab.station.rounds) == rounds
