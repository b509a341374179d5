"""The response cache: equal bytes, equal answers; bounded; counted."""

from __future__ import annotations

import numpy as np
import pytest
from runner_models import alone, assert_same, open_on, sentences, text_model

from hasten.errors import InvalidInput
from hasten.runner.cache import ResponseCache, from_recipe, identity


def test_repeated_samples_are_answered_without_running(tmp_path):
    model = text_model(tmp_path)
    samples = sentences([4, 4, 4])
    stream = [samples[i] for i in (0, 1, 0, 2, 1, 0)]
    with open_on(model, runner={"batch": 2}, cache={"kind": "identity", "entries": 8}) as runner:
        found = runner.run(stream)
        assert (runner.cache.hits, runner.cache.lookups) == (3, 6)
        assert_same(found, alone(model, stream))
        assert_same([runner.run_one(samples[2])], alone(model, [samples[2]]))
        assert (runner.cache.hits, runner.cache.lookups) == (4, 7)


def test_a_cleared_cache_counts_from_zero(tmp_path):
    model, sample = text_model(tmp_path), sentences([4])[0]
    with open_on(model, cache={"entries": 2}) as runner:
        runner.run([sample, sample])
        runner.cache.clear()
        assert (runner.cache.hits, runner.cache.lookups) == (0, 0)
        runner.run([sample, sample])
        assert (runner.cache.hits, runner.cache.lookups) == (1, 2)


def test_changing_an_answer_does_not_change_the_next_one(tmp_path):
    model, sample = text_model(tmp_path), sentences([4])[0]
    with open_on(model, cache={"entries": 2}) as runner:
        for _ in range(3):
            answer = runner.run_one(sample)
            assert_same([answer], alone(model, [sample]))
            answer["pooled"][:] = 0


def test_the_least_recently_used_entry_is_forgotten():
    cache = ResponseCache(2)
    a, b, c = ({"x": np.array([n])} for n in (1, 2, 3))
    for sample in (a, b, a, c):
        cache.look_up(sample)
    assert [cache.look_up(sample)[1] for sample in (a, c)] == [True, True]
    assert cache.look_up(b)[1] is False


def test_identity_tells_names_types_shapes_and_values_apart():
    samples = [
        {"x": np.zeros(4, np.float32)},
        {"y": np.zeros(4, np.float32)},
        {"x": np.zeros(4, np.int32)},
        {"x": np.zeros((2, 2), np.float32)},
        {"x": np.array([0, 0, 0, 1], np.float32)},
        {"x": np.array(["a", "b"], object)},
        {"x": np.array(["ab", ""], object)},
    ]
    assert len({identity(sample) for sample in samples}) == len(samples)
    scattered = np.arange(12, dtype=np.float32).reshape(3, 4).T
    assert identity({"x": scattered}) == identity({"x": np.ascontiguousarray(scattered)})


def test_a_failure_is_not_remembered(tmp_path):
    model = text_model(tmp_path)
    bad = {"input_ids": np.array([3, 999]), "attention_mask": np.ones(2, np.int64)}
    with open_on(model, cache={"entries": 4}) as runner:
        for _ in range(2):
            with pytest.raises(Exception, match="out of"):
                runner.run_one(bad)
        assert runner.cache.hits == 0


@pytest.mark.parametrize(
    "cache",
    [{"kind": "semantic"}, {"distance": 0.1}, {"kind": "semantic", "distance": 1.0}, {"entries": 0}, {"size": 3}],
)
def test_a_cache_section_that_makes_no_sense_is_invalid_input(cache):
    with pytest.raises(InvalidInput):
        from_recipe(cache)
    assert from_recipe({}) is None
