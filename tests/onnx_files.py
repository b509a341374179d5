"""Writes a tiny ONNX model for a test, and gives the handle that hasten has of it."""

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
    "bool": TensorProto.BOOL,
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
