from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hasten.errors import Failed
from hasten.lab.race import Race, race


@dataclass
class Machine:
    """A fake machine: a clock that moves when something runs, and moods that stretch each run."""

    moods: list[float] = field(default_factory=list)
    now: float = 0.0
    log: list[str] = field(default_factory=list)

    def clock(self) -> float:
        return self.now

    def run(self, name: str, seconds: float) -> float:
        took = seconds * (math.exp(self.moods[len(self.log)]) if self.moods else 1.0)
        self.log.append(name)
        self.now += took
        return took


@dataclass
class Runner:
    """A contestant whose rounds take `seconds`, and which raises `error` from round `fails_at` on."""

    machine: Machine
    name: str
    seconds: float = 1.0
    fails_at: int = 10**9
    error: Exception = field(default_factory=lambda: ValueError("broken"))
    done: int = 0

    def round(self) -> float:
        self.done += 1
        if self.done > self.fails_at:
            raise self.error
        return self.machine.run(self.name, self.seconds)


def time_ratio(baseline: float, variant: float) -> float:
    return baseline / variant


def start(machine: Machine, *runners: Runner, budget_s: float = 1e9, **options: object) -> Race:
    return race(list(runners), ratio=time_ratio, clock=machine.clock, budget_s=budget_s, **options)  # type: ignore[arg-type]


def test_a_race_against_oneself_contains_1_in_93_of_100_races_even_though_it_stops_early(noise: Any) -> None:
    held, early = 0, 0
    moods = noise(2 * 30, 1000, np.random.default_rng(7))
    for seed, mood in enumerate(moods.tolist()):
        machine = Machine(mood)
        result = start(machine, Runner(machine, "a"), Runner(machine, "b"), max_rounds=30, seed=seed, tolerance=0.03)
        low, high = result.ratios["b"].ci95 or (0, math.inf)
        held += low <= 1 <= high
        early += result.stopped == "narrow"
    assert held >= 930
    assert 200 < early < 1000


def test_a_steady_machine_gives_the_exact_ratio_in_the_fewest_rounds() -> None:
    machine = Machine()
    result = start(machine, Runner(machine, "slow", 3.0), Runner(machine, "quick", 1.5))
    assert result.ratios["quick"].value == pytest.approx(2.0)
    assert result.ratios["quick"].ci95 == pytest.approx((2.0, 2.0))
    assert result.ratios["quick"].unit == "x"
    assert result.pairs("quick") == ((3.0, 1.5),) * 5
    assert result.stopped == "narrow"
    assert result.seconds == pytest.approx(5 * 4.5)
    assert not result.noisy


def test_every_contestant_runs_once_a_round_in_an_order_that_the_seed_draws() -> None:
    logs = []
    for seed in (1, 1, 2):
        machine = Machine()
        start(machine, *(Runner(machine, name) for name in "abc"), min_rounds=20, seed=seed)
        logs.append(["".join(machine.log[i : i + 3]) for i in range(0, len(machine.log), 3)])
    assert all(sorted(order) == ["a", "b", "c"] for order in logs[0])
    assert len(set(logs[0])) == 6
    assert logs[0] == logs[1] != logs[2]


def test_a_contestant_that_raises_leaves_with_its_reason_and_the_others_race_on() -> None:
    machine = Machine()
    result = start(
        machine,
        Runner(machine, "base", 2.0),
        Runner(machine, "dies", 1.0, fails_at=3),
        Runner(machine, "never", 1.0, fails_at=0, error=Failed("killed by signal 11", "fix")),
        Runner(machine, "fine", 1.0),
        min_rounds=6,
    )
    assert result.errors == {"dies": "ValueError: broken", "never": "killed by signal 11"}
    assert len(result.rounds["dies"]) == 3
    assert result.ratios["dies"].value == pytest.approx(2.0)
    assert "never" not in result.ratios
    assert len(result.rounds["fine"]) == 6
    assert result.running == ("base", "fine")


@pytest.mark.parametrize("figure", [math.nan, math.inf, 0.0, -1.0])
def test_a_figure_that_cannot_be_compared_takes_its_contestant_out(figure: float) -> None:
    class Odd:
        name = "odd"

        def round(self) -> float:
            return figure

    machine = Machine()
    result = race([Runner(machine, "a"), Odd()], ratio=time_ratio, clock=machine.clock, budget_s=9)
    assert "positive and finite" in result.errors["odd"]
    assert result.stopped == "alone"


def test_a_race_ends_when_the_baseline_fails_and_keeps_what_it_found() -> None:
    machine = Machine()
    result = start(machine, Runner(machine, "a", 2.0, fails_at=2), Runner(machine, "b", 1.0))
    assert result.stopped == "baseline failed"
    assert result.ratios["b"].value == pytest.approx(2.0)
    assert len(result.pairs("b")) == 2


def test_ctrl_c_is_not_taken_for_a_failing_contestant() -> None:
    machine = Machine()

    class Interrupted:
        name = "x"

        def round(self) -> float:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        race([Runner(machine, "a"), Interrupted()], ratio=time_ratio, clock=machine.clock, budget_s=9)


@given(st.floats(0.1, 50), st.floats(0.1, 10), st.floats(0.1, 10))
@settings(deadline=None)
def test_no_round_is_started_that_would_not_fit_into_the_budget(budget: float, a: float, b: float) -> None:
    machine = Machine()
    result = start(machine, Runner(machine, "a", a), Runner(machine, "b", b), budget_s=budget, tolerance=-1.0)
    assert len(result.rounds["a"]) == len(result.rounds["b"]) >= 1
    assert result.seconds <= max(budget, a + b) * (1 + 1e-9)
    if result.stopped == "budget":
        assert result.seconds + a + b > budget * (1 - 1e-9)


def test_one_round_has_no_interval() -> None:
    machine = Machine()
    result = start(machine, Runner(machine, "a"), Runner(machine, "b"), budget_s=0.1)
    assert result.ratios["b"].ci95 is None
    assert result.noisy


def test_hopeless_contestants_leave_early_when_asked() -> None:
    machine = Machine()
    runners = [Runner(machine, "base", 2.0), Runner(machine, "slow", 3.0), Runner(machine, "good", 1.0)]
    runners.append(Runner(machine, "fair", 1.5))
    result = start(machine, *runners, min_rounds=6, max_rounds=8, tolerance=-1.0, eliminate=True)
    assert set(result.eliminated) == {"slow", "fair"}
    assert len(result.rounds["slow"]) == 6
    assert len(result.rounds["good"]) == 8
    assert result.ratios["slow"].value == pytest.approx(2 / 3)


def test_equals_are_hardly_ever_given_up_however_often_one_looks(noise: Any) -> None:
    given_up = 0
    moods = noise(3 * 20, 100, np.random.default_rng(1))
    for seed, mood in enumerate(moods.tolist()):
        machine = Machine(mood)
        runners = [Runner(machine, name) for name in "abc"]
        result = start(machine, *runners, max_rounds=20, seed=seed, tolerance=-1.0, eliminate=True)
        given_up += bool(result.eliminated)
    assert given_up <= 5


def test_the_caller_can_stop_a_race_and_hears_every_round() -> None:
    machine, heard = Machine(), []
    result = start(
        machine,
        Runner(machine, "a"),
        Runner(machine, "b"),
        tolerance=-1.0,
        stop_when=lambda now: len(now.rounds["b"]) >= 7,
        on_round=heard.append,
    )
    assert result.stopped == "decided"
    assert heard == [1, 2, 3, 4, 5, 6, 7]


def test_two_contestants_of_one_name_cannot_race() -> None:
    machine = Machine()
    with pytest.raises(ValueError, match="names"):
        start(machine, Runner(machine, "a"), Runner(machine, "a"))
