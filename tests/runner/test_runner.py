"""Samples through a variant: every policy returns, in order, what each sample gives alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper
from runner_models import alone, assert_same, open_on, sentences, text_model

from hasten.errors import Failed, InvalidInput
from hasten.model import Signature, Tensor
from hasten.recipe import Recipe
from hasten.runner import infer, open_runner, verify
from hasten.runtimes.fake import FakeRuntime
from hasten.variant import Variant
from hasten.workload import Padding
from onnx_files import save

PADDING = Padding({"input_ids": 0.0, "attention_mask": 0.0}, 0, True, outputs={"tokens": 0})
POLICIES = [
    {},
    {"batch": 4},
    {"batch": 4, "sort": True},
    {"batch": 3, "static": True},
    {"form": "bucket", "buckets": [4, 8], "batch": 3},
    {"form": "bucket", "buckets": [4, 8], "batch_tokens": 16, "sort": True, "static": True},
]


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("runner", POLICIES)
def test_every_policy_returns_what_each_sample_gives_alone(tmp_path, runtime, streams, runner):
    model, samples = text_model(tmp_path), sentences([3, 9, 5, 7, 1, 4, 12, 5, 2, 8, 8])
    with open_on(model, runtime, runner, PADDING, streams=streams) as opened:
        opened.warm(samples)
        for _ in range(2):
            assert_same(opened.run(samples), alone(model, samples))
        assert_same([opened.run_one(samples[1]), opened.submit(samples[2]).result()], alone(model, samples[1:3]))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(1, 20), min_size=1, max_size=30), st.sampled_from(POLICIES), st.booleans())
def test_order_and_sizes_are_restored_for_any_lengths(tmp_path, lengths, runner, padded):
    model, samples = text_model(tmp_path), sentences(lengths)
    if not padded and runner.get("form") == "bucket":
        return
    with open_on(model, "onnxruntime", runner, PADDING if padded else None) as opened:
        assert_same(opened.run(samples), alone(model, samples))


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("rows", [1, 4])
def test_a_model_with_one_batch_size_gets_it_and_the_filling_is_cut_off(tmp_path, runtime, rows):
    model, samples = text_model(tmp_path, rows=rows), sentences([6] * 10)
    expected = alone(text_model(tmp_path), samples)
    with open_on(model, runtime, {"batch": 8}, streams=2) as opened:
        assert_same(opened.run(samples), expected)
        assert_same([opened.run_one(samples[3])], expected[3:4])


def test_answers_do_not_change_when_the_runner_runs_again(tmp_path):
    model = text_model(tmp_path)
    for runtime in ("onnxruntime", "openvino"):
        with open_on(model, runtime, {"batch": 4}, PADDING, streams=2) as opened:
            first = opened.run(sentences([3, 9, 5, 7]))
            kept = [{name: array.copy() for name, array in answer.items()} for answer in first]
            opened.run(sentences([9, 3, 7, 5], seed=1))
            assert_same(first, kept, 0)


def test_an_input_that_comes_back_as_an_output_is_not_overwritten(tmp_path):
    tensors = [Tensor("x", "float32", ("n", 2))], [Tensor("y", "float32", ("n", 2))]
    model = save(tmp_path / "same.onnx", [helper.make_node("Identity", ["x"], ["y"])], *tensors)
    for runtime in ("onnxruntime", "openvino"):
        with open_on(model, runtime, {"batch": 2}) as opened:
            first = opened.run([{"x": np.full(2, n, np.float32)} for n in range(4)])
            opened.run([{"x": np.full(2, 9, np.float32)} for _ in range(4)])
            assert [answer["y"][0] for answer in first] == [0, 1, 2, 3]


def test_an_input_without_batch_axis_is_shared_where_samples_agree(tmp_path):
    model = save(
        tmp_path / "rate.onnx",
        [helper.make_node("Mul", ["x", "rate"], ["y"])],
        [Tensor("x", "float32", ("n", 2)), Tensor("rate", "float32", ())],
        [Tensor("y", "float32", ("n", 2))],
    )
    samples = [{"x": np.full(2, n, np.float32), "rate": np.float32(3).reshape(())} for n in range(5)]
    with open_on(model, runner={"batch": 4}) as opened:
        assert [answer["y"][0] for answer in opened.run(samples)] == [0, 3, 6, 9, 12]
        samples[2]["rate"] = np.float32(10).reshape(())
        assert [answer["y"][0] for answer in opened.run(samples)] == [0, 3, 20, 9, 12]


def test_a_model_without_batch_axis_runs_one_sample_at_a_time(tmp_path):
    model = save(
        tmp_path / "flat.onnx",
        [helper.make_node("Relu", ["x"], ["y"])],
        [Tensor("x", "float32", ("k", 3))],
        [Tensor("y", "float32", ("k", 3))],
    )
    samples = [{"x": np.full((n + 1, 3), n, np.float32)} for n in range(4)]
    with open_on(model, runner={"batch": 4}, streams=2) as opened:
        assert [answer["y"].shape for answer in opened.run(samples)] == [(1, 3), (2, 3), (3, 3), (4, 3)]


def test_rows_of_all_samples_one_after_the_other_are_told_apart(tmp_path):
    model = save(
        tmp_path / "flattened.onnx",
        [helper.make_node("Reshape", ["x", "shape"], ["y"])],
        [Tensor("x", "float32", ("n", 3, 2))],
        [Tensor("y", "float32", ("rows", 2))],
        {"shape": np.array([-1, 2])},
    )
    samples = [{"x": np.full((3, 2), n, np.float32)} for n in range(5)]
    with open_on(model, runner={"batch": 2}) as opened:
        assert [(answer["y"].shape, answer["y"][0, 0]) for answer in opened.run(samples)] == [
            ((3, 2), n) for n in range(5)
        ]


def test_an_output_for_the_whole_batch_asks_for_batch_one(tmp_path):
    model = save(
        tmp_path / "total.onnx",
        [helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0)],
        [Tensor("x", "float32", ("n", 2))],
        [Tensor("total", "float32", ())],
    )
    samples = [{"x": np.full(2, n, np.float32)} for n in range(3)]
    with open_on(model, runner={"batch": 3}) as opened, pytest.raises(InvalidInput, match="cannot be told apart"):
        opened.run(samples)
    with open_on(model) as opened:
        assert [float(answer["total"]) for answer in opened.run(samples)] == [0, 2, 4]


def test_text_is_batched(tmp_path):
    tensors = [Tensor("text", "string", ("n", 1))], [Tensor("same", "string", ("n", 1))]
    model = save(tmp_path / "text.onnx", [helper.make_node("Identity", ["text"], ["same"])], *tensors)
    samples = [{"text": np.array([word])} for word in ("a", "longer", "häuser")]
    with open_on(model, runner={"batch": 2}) as opened:
        assert [str(answer["same"][0]) for answer in opened.run(samples)] == ["a", "longer", "häuser"]


def test_the_source_models_types_are_kept_whatever_the_variant_takes(tmp_path):
    tensors = [Tensor("x", "float16", ("n", 2))], [Tensor("y", "float16", ("n", 2))]
    variant = save(tmp_path / "half.onnx", [helper.make_node("Relu", ["x"], ["y"])], *tensors)
    source = Signature((Tensor("x", "float32", ("n", 2)),), (Tensor("y", "float32", ("n", 2)),))
    recipe = Recipe(runtime={"name": "onnxruntime"}, runner={"batch": 2})
    with open_runner(Variant({"main": variant}), recipe, source, None) as opened:
        answers = opened.run([{"x": np.full(2, n, np.float32)} for n in range(3)])
    assert [(answer["y"].dtype.name, answer["y"][0]) for answer in answers] == [("float32", n) for n in range(3)]


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_a_failing_batch_fails_the_run_and_the_runner_stays_usable(tmp_path, runtime):
    model = save(
        tmp_path / "product.onnx",
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [Tensor("x", "float32", ("n", "m")), Tensor("w", "float32", ("k", "l"))],
        [Tensor("y", "float32", ("n", "l"))],
    )
    good = [{"x": np.ones(4, np.float32), "w": np.ones((4, 2), np.float32)} for _ in range(6)]
    bad = [*good[:3], {"x": np.ones(4, np.float32), "w": np.ones((3, 2), np.float32)}, *good[3:]]
    for streams in (1, 2):
        with open_on(model, runtime, streams=streams) as opened:
            for _ in range(5):
                with pytest.raises(Failed):
                    opened.run(bad)
                with pytest.raises(Failed):
                    opened.submit(bad[3]).result(timeout=60)
                assert [answer["y"].tolist() for answer in opened.run(good)] == [[4, 4]] * 6


def test_one_runner_serves_many_threads(tmp_path):
    model, samples = text_model(tmp_path), sentences([3, 9, 5, 7, 1, 4])
    expected = alone(model, samples)
    for runtime in ("onnxruntime", "openvino"):
        opened = open_on(model, runtime, {"batch": 2, "static": True}, PADDING, streams=2)
        with opened, ThreadPoolExecutor(4) as pool:
            for answers in pool.map(opened.run, [samples] * 8):
                assert_same(answers, expected)


def test_static_shapes_load_one_session_for_each_bucket(tmp_path):
    model, samples = text_model(tmp_path), sentences([3, 9, 5, 7, 1, 4, 12])
    loaded = []

    class Counting(FakeRuntime):
        def load(self, model, settings):
            loaded.append(settings.shapes)
            return super().load(model, settings)

    recipe = Recipe(runner={"form": "bucket", "buckets": [4, 16], "batch": 3, "static": True})
    with open_runner(Variant({"main": model}), recipe, model.signature, PADDING, runtime=Counting()) as opened:
        opened.warm(samples)
        opened.run(samples)
    shapes = [{"input_ids": (3, n), "attention_mask": (3, n)} for n in (16, 4)]
    assert loaded == shapes


def test_the_runner_names_the_operators_of_its_typical_batch(tmp_path):
    model = text_model(tmp_path)
    for runtime in ("onnxruntime", "openvino"):
        with open_on(model, runtime, {"batch": 4}, PADDING) as opened:
            assert any("Gather" in o.kind for o in opened.operators(sentences([500] * 5), repeats=2))


def test_padding_found_on_a_session_is_used_by_the_runner(tmp_path):
    model, samples = text_model(tmp_path), sentences([3, 9, 5, 7])
    from hasten.runtimes import Settings
    from hasten.runtimes.openvino import OpenVino

    session = OpenVino().load(model, Settings("fp32"))
    padding = verify(infer(model.signature, samples), session.run, samples)
    assert padding == PADDING
    assert Padding.from_json(padding.to_json()) == padding


def test_what_cannot_run_is_invalid_input(tmp_path):
    model, sample = text_model(tmp_path), sentences([3])[0]
    with pytest.raises(InvalidInput, match="no runtime called"):
        open_on(model, "abacus")
    with pytest.raises(InvalidInput, match="does not load"):
        open_on(type(model)(model.path, "gguf", model.sha256, model.signature, model.facts))
    with pytest.raises(InvalidInput, match="does not run the program"):
        open_runner(Variant({"main": model}, "cascade"), Recipe(), model.signature, None)
    with open_on(model) as opened:
        assert opened.run([]) == []
        with pytest.raises(InvalidInput, match="no input attention_mask"):
            opened.run([{"input_ids": sample["input_ids"]}])
    with open_on(model) as opened, pytest.raises(InvalidInput, match="3 axes in the samples"):
        opened.run([{name: array.reshape(1, 1, -1) for name, array in sample.items()}])


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("runner", [{"batch": 1}, {"batch": 3}, {"batch": 4, "static": True}])
def test_an_output_may_have_its_batch_axis_second(tmp_path, runtime, runner):
    """As PyTorch's recurrent layers give it: six steps are no two rows of each of three samples."""
    model = save(
        tmp_path / "steps.onnx",
        [helper.make_node("Transpose", ["x"], ["steps"], perm=[1, 0, 2])],
        [Tensor("x", "float32", ("batch", 6, 2))],
        [Tensor("steps", "float32", (6, "batch", 2))],
    )
    samples = [{"x": row} for row in np.random.default_rng(0).normal(size=(7, 6, 2)).astype(np.float32)]
    with open_on(model, runtime, runner, None) as opened:
        found = opened.run(samples)
    for sample, outputs in zip(samples, found, strict=True):
        np.testing.assert_array_equal(outputs["steps"], sample["x"])
