"""The response cache of similar inputs: never from farther than allowed, bounded, and forgotten between rounds."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from runner_models import alone, assert_same, open_on, sentences, text_model

from hasten.measure.bench import Opened, outputs, round
from hasten.measure.outputs import load
from hasten.model import Tensor
from hasten.runner.alike import Space, vectors
from hasten.runner.cache import ResponseCache
from onnx_files import save

numbers = st.lists(st.integers(0, 3), min_size=1, max_size=6)
floats = st.lists(st.floats(-4, 4, width=32), min_size=3, max_size=3)
samples_of = st.one_of(
    st.lists(numbers.map(lambda row: {"x": np.array(row)}), max_size=25),
    st.lists(floats.map(lambda row: {"x": np.array(row, np.float32)}), max_size=25),
    st.lists(st.text("ab ", max_size=6).map(lambda text: {"x": np.array(text)}), max_size=25),
)


def apart(one: dict, other: dict) -> float:
    space = Space()
    space.add(0, vectors(one))
    return space.nearest(vectors(other))[1]


@given(samples_of, st.floats(0, 0.9), st.integers(1, 6))
@settings(deadline=None)
def test_no_answer_comes_from_farther_than_the_distance_and_none_that_is_near_is_missed(found, distance, entries):
    cache = ResponseCache(entries, distance)
    made: dict[int, dict] = {}
    kept: list[int] = []
    for number, sample in enumerate(found):
        entry, known = cache.look_up(sample)
        if known:
            source = int(entry.outputs["y"])
            assert source in kept
            assert apart(made[source], sample) <= distance or made[source]["x"].tolist() == sample["x"].tolist()
            kept.remove(source)
            kept.append(source)
        else:
            assert all(apart(made[other], sample) > distance for other in kept)
            made[number] = sample
            entry.fill({"y": np.array(number)})
            kept = [*kept, number][-entries:]
    assert cache.lookups == len(found)
    assert cache.similar <= cache.hits == len(found) - len(made)


def test_like_texts_are_nearer_than_others_and_scale_counts_for_numbers():
    text, like, other = ({"x": np.array(t)} for t in ("where is my parcel", "where is my parcel?", "cancel the order"))
    assert apart(text, like) < 0.2 < 0.7 < apart(text, other)
    image = np.random.default_rng(0).normal(size=(3, 40, 40)).astype(np.float32)
    assert apart({"x": image}, {"x": image * 2}) == pytest.approx(0.2, abs=1e-4)
    assert apart({"x": image}, {"x": np.full_like(image, np.nan)}) == np.inf
    tokens = {"x": np.array([5, 6, 7]), "mask": np.ones(3, np.int64)}
    assert apart(tokens, {**tokens, "x": np.array([1, 2, 3])}) > 0.5, "a mask alike does not make inputs alike"


def test_what_a_similar_input_answered_answers_no_other():
    cache = ResponseCache(8, 0.01)
    steps = [{"x": np.array([1.0, step])} for step in (0.0, 0.13, 0.26)]
    assert apart(steps[1], steps[2]) < 0.01 < apart(steps[0], steps[2])
    assert [cache.look_up(step)[1] for step in steps] == [False, True, False]


def dense(folder):
    weights = np.random.default_rng(1).normal(size=(4, 2)).astype(np.float32)
    return save(
        folder / "dense.onnx",
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [Tensor("x", "float32", ("batch", 4))],
        [Tensor("y", "float32", ("batch", 2))],
        {"w": weights},
    )


def test_the_rate_and_the_quality_are_those_of_one_pass(tmp_path):
    model = dense(tmp_path)
    base = np.eye(4, dtype=np.float32)
    scene = [{"x": row} for row in (base[0], base[0], base[0] * 1.001, base[1], base[2])]
    with open_on(model, cache={"kind": "semantic", "entries": 8, "distance": 1e-3}) as runner:
        opened = Opened(runner, scene, "single-stream", scene)
        scope = SimpleNamespace(state={"opened": opened}, progress=lambda *_: None)
        for _ in range(2):
            answer = round({"repeat": 3}, scope)
            assert answer["reused"] == {"cache_hit_rate": [6, 15], "similar_rate": [3, 15]}
        outputs({"indices": [2, 0, 3], "path": str(tmp_path / "o.npz")}, scope)
        found = load(tmp_path / "o.npz")
    truth = alone(model, scene)
    assert_same(found, [truth[2], truth[2], truth[3]], 1e-6)


def test_outputs_as_long_as_the_input_come_from_inputs_of_that_length(tmp_path):
    model = text_model(tmp_path)
    samples = sentences([4, 6, 4, 5, 6])
    with open_on(model, cache={"kind": "semantic", "entries": 8, "distance": 0.99}) as runner:
        found = runner.run(samples)
    assert [row["tokens"].shape for row in found] == [(len(sample["input_ids"]), 4) for sample in samples]


def test_threads_share_a_cache(tmp_path):
    model = dense(tmp_path)
    scene = [{"x": row} for row in np.random.default_rng(2).normal(size=(12, 4)).astype(np.float32)] * 6
    truth = alone(model, scene)
    with open_on(model, cache={"kind": "semantic", "entries": 4, "distance": 1e-6}) as runner:
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(runner.run_one, scene))
        assert runner.cache.lookups == len(scene)
    assert_same(found, truth, 1e-2)
