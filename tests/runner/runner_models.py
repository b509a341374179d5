"""Tiny ONNX models for the tests of the runner, with the handle that hasten gives them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

from hasten.model import Model, Tensor
from hasten.recipe import Recipe
from hasten.runner import Runner, open_runner
from hasten.variant import Variant
from hasten.workload import Padding
from onnx_files import save


def text_model(folder: Path, rows: int | str = "batch", masked: bool = True) -> Model:
    """Token numbers and a mask -> `tokens` [rows, length, 4] and their mean, `pooled` [rows, 4].

    Without `masked` the mean runs over the padding too.
    """
    table = np.random.default_rng(3).normal(size=(50, 4)).astype(np.float32)
    mean = [helper.make_node("ReduceMean", ["tokens"], ["pooled"], axes=[1], keepdims=0)]
    if masked:
        mean = [
            helper.make_node("Cast", ["attention_mask"], ["m0"], to=TensorProto.FLOAT),
            helper.make_node("Unsqueeze", ["m0", "last"], ["m"]),
            helper.make_node("Mul", ["tokens", "m"], ["kept"]),
            helper.make_node("ReduceSum", ["kept", "first"], ["total"], keepdims=0),
            helper.make_node("ReduceSum", ["m", "first"], ["count"], keepdims=0),
            helper.make_node("Div", ["total", "count"], ["pooled"]),
        ]
    else:
        mean.append(helper.make_node("Identity", ["attention_mask"], ["unused"]))
    return save(
        folder / f"text_{rows}_{masked}.onnx",
        [helper.make_node("Gather", ["table", "input_ids"], ["tokens"]), *mean],
        [Tensor("input_ids", "int64", (rows, "length")), Tensor("attention_mask", "int64", (rows, "length"))],
        [Tensor("tokens", "float32", (rows, "length", 4)), Tensor("pooled", "float32", (rows, 4))],
        {"table": table, "last": np.array([2]), "first": np.array([1])},
    )


def sentences(lengths: list[int], seed: int = 0) -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(seed)
    return [{"input_ids": random.integers(1, 50, n), "attention_mask": np.ones(n, np.int64)} for n in lengths]


def open_on(
    model: Model,
    runtime: str = "onnxruntime",
    runner: dict | None = None,
    padding: Padding | None = None,
    cache: dict | None = None,
    **settings: object,
) -> Runner:
    settings = {"precision": "fp32", "threads": 1, **settings}
    recipe = Recipe(runtime={"name": runtime, **settings}, runner=runner or {}, cache=cache or {})
    return open_runner(Variant({"main": model}), recipe, model.signature, padding)


def alone(model: Model, samples: list[dict[str, np.ndarray]], runtime: str = "onnxruntime") -> list[dict]:
    """What each sample gives by itself: the truth that every policy must return."""
    with open_on(model, runtime) as runner:
        return [runner.run_one(sample) for sample in samples]


def assert_same(found: list[dict], expected: list[dict], tolerance: float = 1e-4) -> None:
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            assert a[name].shape == b[name].shape
            np.testing.assert_allclose(a[name], b[name], rtol=tolerance, atol=tolerance)
