import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.device import Device
from hasten.diagnose.profile import Observation, Profile, build, classes, stream_share
from hasten.diagnose.rows import OperatorRow
from hasten.errors import InvalidInput
from hasten.measurement import Figure
from hasten.model import Operator
from hasten.recipe import Recipe
from hasten.runtimes.base import OperatorTime

DEVICE = Device(
    "test",
    cpus=(0, 1),
    caches_bytes={"L2": 1 << 20},
    limits={
        "gemm_fp32_gflops": Figure(100.0, "GFLOP/s", "measured"),
        "gemm_int8_gops": Figure(400.0, "GOP/s", "measured"),
        "read_gb_s": Figure(10.0, "GB/s", "measured"),
        "operator_us": Figure(1.0, "us", "measured"),
    },
)
OPERATORS = (
    Operator("conv", "Conv", 100_000_000, 8_000_000, 4_000_000, ("c",)),
    Operator("relu", "Relu", 1_000_000, 8_000_000, 0, ("r",)),
)
SEEN = Observation(
    (
        OperatorTime("conv", "Convolution", 2000.0, "jit_f32", ("conv",)),
        OperatorTime("relu", "Relu", 1000.0, "jit_f32", ("relu",)),
        OperatorTime("reorder", "Reorder", 200.0),
    ),
    Figure(5000.0, "us", "measured", (4900.0, 5100.0)),
    Figure(4500.0, "us", "measured"),
    8,
    {"x": (8, 3)},
)


@pytest.fixture
def profile() -> Profile:
    return build(SEEN, OPERATORS, Recipe(runtime={"name": "openvino"}), DEVICE, model="net.onnx")


def test_shares_of_the_classes_add_up_to_the_run(profile):
    assert profile.shares["compute"] == pytest.approx(2000 / 5000)
    assert profile.shares["memory"] == pytest.approx(1200 / 5000)
    assert profile.shares["io"] == pytest.approx(500 / 5000)
    assert profile.shares["overhead"] == pytest.approx(1300 / 5000)
    assert sum(profile.shares.values()) == pytest.approx(1)
    assert profile.bound == "compute"


def test_kinds_are_the_models_words_and_add_up_to_one(profile):
    kinds = profile.kinds()
    assert kinds["Conv"] == pytest.approx(0.4)
    assert kinds["Reorder"] == pytest.approx(0.04)
    assert sum(kinds.values()) == pytest.approx(1)


def test_the_best_possible_is_an_estimate_for_each_measured_precision(profile):
    assert set(profile.best_us) == {"fp32", "int8"}
    assert profile.best_us["int8"].value < profile.best_us["fp32"].value < profile.wall_us.value
    assert profile.best_us["fp32"].source.startswith("estimated: roofline")


def test_a_profile_survives_json(profile):
    assert Profile.from_json(json.loads(json.dumps(profile.to_json()))) == profile


def test_something_else_is_refused_as_a_profile():
    with pytest.raises(InvalidInput, match="not a profile"):
        Profile.from_json({"schema": "hasten.study/1"})


def test_words_say_the_time_the_bound_and_what_to_try(profile):
    said = " ".join(profile.words([("int8", 2.3, "Conv takes 40% of the time.")]))
    assert "A run of 8 samples takes 5 ms" in said
    assert "compute-bound" in said
    assert "Try first: int8, predicted 2.3x. Conv takes 40% of the time." in said
    assert "in int8" in said


def test_unknown_arithmetic_is_admitted():
    words = " ".join(build(SEEN, (), Recipe(), DEVICE).words())
    assert "What bounds it is not known" in words


def test_trees_have_no_roof_and_no_best_possible_time():
    walks = (Operator("conv", "TreeEnsembleClassifier", 0, 400, 0, ("c",)), OPERATORS[1])
    found = build(SEEN, walks, Recipe(), DEVICE)
    assert found.rows[0].by == "unknown"
    assert found.rows[0].fraction is None
    assert not found.best_us


def test_faster_than_the_limit_means_that_the_limit_is_wrong():
    quick = replace(SEEN, times=(OperatorTime("conv", "Convolution", 300.0),), wall_us=Figure(400.0, "us", "measured"))
    said = " ".join(build(quick, OPERATORS, Recipe(), DEVICE).notes)
    assert "measure them again" in said


def test_operators_never_take_longer_than_the_run_that_they_are_part_of():
    busy = replace(SEEN, times=tuple(replace(time, microseconds=10 * time.microseconds) for time in SEEN.times))
    profile = build(busy, OPERATORS, Recipe(), DEVICE)
    assert sum(row.microseconds for row in profile.rows) == pytest.approx(4500)
    assert sum(row.share for row in profile.rows) == pytest.approx(4500 / 5000)


def test_a_trace_lays_operators_end_to_end(profile):
    events = [event for event in profile.to_chrome_trace()["traceEvents"] if event["ph"] == "X"]
    run, *operators = events
    assert run["dur"] == 5000.0
    assert [event["name"] for event in operators] == ["conv", "relu", "reorder"]
    for before, after in pairwise(operators):
        assert after["ts"] == pytest.approx(before["ts"] + before["dur"])
    json.dumps(profile.to_chrome_trace())


@pytest.mark.parametrize(
    ("runtime", "share"),
    [
        ({}, 1.0),
        ({"streams": 2}, 0.5),
        ({"streams": 2, "threads": 1}, 0.5),
        ({"threads": 1}, 0.5),
        ({"threads": 9}, 1.0),
    ],
)
def test_a_stream_is_measured_against_its_own_part_of_the_device(runtime, share):
    assert stream_share(Recipe(runtime=runtime), DEVICE) == share


def row(microseconds: float, by: str) -> OperatorRow:
    return OperatorRow("", "", "", microseconds, 0.0, "", "fp32", None, None, by, None, "", None)  # type: ignore[arg-type]


@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.sampled_from(["compute", "memory", "overhead", "unknown"])), max_size=9),
    st.floats(0, 1e7),
    st.floats(0, 1e7),
)
def test_classes_always_add_up_to_one(rows, wall, session):
    found = classes([row(*each) for each in rows], wall, session)
    assert sum(found.values()) == pytest.approx(1)
    assert all(share >= 0 for share in found.values())
