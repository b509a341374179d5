"""Tiny ONNX models for the tests of runtimes, with the handle that hasten gives them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from hasten.model import Facts, Model, Signature, Tensor

_TYPES = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "int64": TensorProto.INT64,
    "int32": TensorProto.INT32,
    "string": TensorProto.STRING,
}


def save(
    path: Path,
    nodes: list[onnx.NodeProto],
    inputs: list[Tensor],
    outputs: list[Tensor],
    weights: dict[str, np.ndarray] | None = None,
) -> Model:
    """Write the graph and return its handle."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(t.name, _TYPES[t.dtype], t.shape) for t in inputs],
        [helper.make_tensor_value_info(t.name, _TYPES[t.dtype], t.shape) for t in outputs],
        [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), str(path))
    return Model(path, "onnx", "0" * 64, Signature(tuple(inputs), tuple(outputs)), Facts(0, path.stat().st_size))


def linear(folder: Path, rows: int | str = "n", width: int = 4, out: int = 3) -> tuple[Model, np.ndarray]:
    """y = relu(x @ w), and w."""
    weight = np.random.default_rng(0).normal(size=(width, out)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"], name="project"),
        helper.make_node("Relu", ["product"], ["y"], name="clip"),
    ]
    model = save(
        folder / f"linear_{rows}.onnx",
        nodes,
        [Tensor("x", "float32", (rows, width))],
        [Tensor("y", "float32", (rows, out))],
        {"w": weight},
    )
    return model, weight


def reshaped(folder: Path) -> Model:
    """y = x in the shape that the second input asks for: fails at run time where it does not fit."""
    return save(
        folder / "reshape.onnx",
        [helper.make_node("Reshape", ["x", "shape"], ["y"], name="reshape")],
        [Tensor("x", "float32", ("n", "m")), Tensor("shape", "int64", (2,))],
        [Tensor("y", "float32", (None, None))],
    )
