"""Reading OpenVINO's counters, which are averages since compilation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.runtimes.openvino_profile import marks, typical


def averages(times: list[float], at: tuple[int, ...]) -> dict[int, float]:
    return {run: float(int(sum(times[:run]) // run)) for run in at}


@given(st.integers(2, 200))
def test_counters_are_read_first_after_the_warm_up_and_last_after_the_last_run(runs):
    at = marks(runs)
    assert at[0] == 1
    assert at[-1] == runs
    assert list(at) == sorted(set(at))


@given(st.integers(4, 200), st.integers(0, 500), st.integers(0, 20_000))
def test_the_slow_first_run_does_not_count(runs, each, first):
    found = typical(averages([first] + [each] * (runs - 1), marks(runs)))
    assert found == pytest.approx(each, abs=2.5)


def test_one_interrupted_run_does_not_make_an_operator_slow():
    times = [900.0] + [12.0] * 100
    times[50] = 9000.0
    assert typical(averages(times, marks(101))) == pytest.approx(12, abs=2)
