"""Padding: what is inferred from samples, and that it is believed only after it was checked."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from runner_models import alone, assert_same, open_on, sentences, text_model

from hasten.errors import InvalidInput
from hasten.model import Tensor
from hasten.runner import infer, verify
from onnx_files import save


def runs(model):
    from hasten.runtimes import Settings
    from hasten.runtimes.onnxruntime import OnnxRuntime

    return OnnxRuntime().load(model, Settings(threads=1)).run


def test_samples_of_one_shape_need_no_padding(tmp_path):
    assert infer(text_model(tmp_path).signature, sentences([5, 5, 5])) is None


def test_a_masked_model_may_be_padded_and_long_outputs_are_cut(tmp_path):
    model, samples = text_model(tmp_path), sentences([3, 9, 5, 7])
    padding = infer(model.signature, samples)
    assert not padding.verified
    padding = verify(padding, runs(model), samples)
    assert padding.verified
    assert padding.values == {"input_ids": 0.0, "attention_mask": 0.0}
    assert padding.axis == 0
    assert padding.outputs == {"tokens": 0}


def test_a_model_whose_result_depends_on_the_padding_is_refused_and_never_padded(tmp_path):
    model, samples = text_model(tmp_path, masked=False), sentences([3, 9, 5, 7, 5])
    padding = verify(infer(model.signature, samples), runs(model), samples)
    assert not padding.verified
    assert "padding changes output pooled" in padding.reason
    with open_on(model, runner={"batch": 4}, padding=padding) as runner:
        assert_same(runner.run(samples), alone(model, samples))
    with pytest.raises(InvalidInput, match="cannot be padded"):
        open_on(model, runner={"form": "bucket", "buckets": [4, 9]}, padding=padding)


def test_another_value_is_tried_where_the_first_one_changes_results(tmp_path):
    """A model that counts the tokens other than 1, which is what it is padded with."""
    model = save(
        tmp_path / "ones.onnx",
        [
            helper.make_node("Equal", ["input_ids", "one"], ["is_pad"]),
            helper.make_node("Not", ["is_pad"], ["is_token"]),
            helper.make_node("Cast", ["is_token"], ["numbers"], to=1),
            helper.make_node("ReduceSum", ["numbers", "axis"], ["count"], keepdims=0),
        ],
        [Tensor("input_ids", "int64", ("n", "length"))],
        [Tensor("count", "float32", ("n",))],
        {"one": np.array(1), "axis": np.array([1])},
    )
    samples = [{"input_ids": np.full(n, 7)} for n in (2, 6, 4)]
    padding = verify(infer(model.signature, samples), runs(model), samples)
    assert padding.verified
    assert padding.values == {"input_ids": 1.0}


def test_an_output_whose_length_follows_another_rule_is_not_padded(tmp_path):
    model = save(
        tmp_path / "twice.onnx",
        [helper.make_node("Concat", ["x", "x"], ["y"], axis=1)],
        [Tensor("x", "float32", ("n", "length"))],
        [Tensor("y", "float32", ("n", "twice"))],
    )
    samples = [{"x": np.ones(n, np.float32)} for n in (2, 6, 4)]
    padding = verify(infer(model.signature, samples), runs(model), samples)
    assert not padding.verified
    assert "not as long" in padding.reason


@pytest.mark.parametrize(
    ("shapes", "word"),
    [
        ([{"x": (2, 3)}, {"x": (4, 5)}], "axes 0, 1"),
        ([{"x": (2,)}, {"x": (4, 5)}], "ranks"),
        ([{"x": (2,), "y": (3, 2)}, {"x": (4,), "y": (3, 4)}], "not the same"),
        ([{"x": (2,), "y": (3,)}, {"x": (4,), "y": (4,)}], "differ in length"),
    ],
)
def test_samples_that_no_single_axis_explains_are_not_padded(tmp_path, shapes, word):
    samples = [{name: np.zeros(shape, np.float32) for name, shape in sample.items()} for sample in shapes]
    padding = infer(text_model(tmp_path).signature, samples)
    assert not padding.verified
    assert word in padding.reason
    assert verify(padding, None, samples) == padding


def test_a_model_that_takes_one_row_is_padded_row_by_row(tmp_path):
    model, samples = text_model(tmp_path, rows=1), sentences([3, 9, 5])
    padding = verify(infer(model.signature, samples), runs(model), samples)
    assert padding.verified
    runner = {"form": "bucket", "buckets": [4, 10], "static": True}
    for runtime in ("onnxruntime", "openvino"):
        with open_on(model, runtime, runner, padding) as opened:
            assert_same(opened.run(samples), alone(model, samples))


def test_a_longer_axis_may_lie_inside(tmp_path):
    """Images of different widths through a convolution that is as wide as the image."""
    weight = np.ones((2, 1, 1, 1), np.float32)
    model = save(
        tmp_path / "wide.onnx",
        [helper.make_node("Conv", ["x", "w"], ["y"])],
        [Tensor("x", "float32", ("n", 1, 4, "width"))],
        [Tensor("y", "float32", ("n", 2, 4, "width"))],
        {"w": weight},
    )
    samples = [{"x": np.random.default_rng(n).normal(size=(1, 4, n)).astype(np.float32)} for n in (3, 8, 5, 6)]
    padding = verify(infer(model.signature, samples), runs(model), samples)
    assert (padding.verified, padding.axis, padding.outputs) == (True, 2, {"y": 2})
    with open_on(model, runner={"batch": 3}, padding=padding) as runner:
        assert_same(runner.run(samples), alone(model, samples))
