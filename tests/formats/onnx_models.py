"""Tiny ONNX models for the tests of this folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def value(name: str, shape: Sequence[int | str | None] | None, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def weight(name: str, *shape: int, dtype: Any = np.float32, seed: int = 0) -> onnx.TensorProto:
    generator = np.random.default_rng(seed)
    return numpy_helper.from_array(generator.standard_normal(shape).astype(dtype), name)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    weights: Sequence[onnx.TensorProto] = (),
    opset: int = 17,
    **more: Any,
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    opsets = more.pop("opset_imports", [helper.make_opsetid("", opset)])
    return helper.make_model(graph, opset_imports=opsets, ir_version=more.pop("ir_version", 8), **more)


def save(proto: onnx.ModelProto, path: Path) -> Path:
    path.write_bytes(proto.SerializeToString())
    return path


def mlp(rows: int = 64, columns: int = 32) -> onnx.ModelProto:
    """x [n, rows] -> MatMul -> Add -> Relu -> y [n, columns]."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], name="product"),
        helper.make_node("Add", ["m", "b"], ["a"], name="bias"),
        helper.make_node("Relu", ["a"], ["y"], name="relu"),
    ]
    return model(
        nodes,
        [value("x", ["n", rows])],
        [value("y", ["n", columns])],
        [weight("w", rows, columns), weight("b", columns)],
    )


def branching() -> onnx.ModelProto:
    """x [n, 64] and a bool -> If, whose branches hold all weights: 64 x 64 in one, 64 x 32 x 64 in the other."""
    then = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w1"], ["t"], name="small")], "then", [], [value("t", None)],
        [weight("w1", 64, 64)],
    )  # fmt: skip
    constant = helper.make_node("Constant", [], ["w3"], value=weight("", 32, 64))
    other = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w2"], ["h"], name="down"), constant,
         helper.make_node("MatMul", ["h", "w3"], ["e"], name="up")],
        "else", [], [value("e", None)], [weight("w2", 64, 32)],
    )  # fmt: skip
    node = helper.make_node("If", ["flag"], ["y"], name="choice", then_branch=then, else_branch=other)
    return model([node], [value("x", ["n", 64]), value("flag", [], TensorProto.BOOL)], [value("y", ["n", 64])])


def cnn() -> onnx.ModelProto:
    """A small real CNN: two convolutions (the second strided, grouped), pooling, a classifier."""
    nodes = [
        helper.make_node("Conv", ["image", "w1", "b1"], ["c1"], name="conv1", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"], name="relu1"),
        helper.make_node("MaxPool", ["r1"], ["p1"], name="pool1", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["p1", "w2"], ["c2"], name="conv2", kernel_shape=[3, 3], pads=[1, 1, 1, 1],
                         strides=[2, 2], group=4),
        helper.make_node("Relu", ["c2"], ["r2"], name="relu2"),
        helper.make_node("GlobalAveragePool", ["r2"], ["p2"], name="pool2"),
        helper.make_node("Flatten", ["p2"], ["f"], name="flatten"),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["logits"], name="classifier", transB=1),
    ]  # fmt: skip
    weights = [weight("w1", 8, 3, 3, 3), weight("b1", 8), weight("w2", 16, 2, 3, 3), weight("w3", 10, 16),
               weight("b3", 10)]  # fmt: skip
    return model(nodes, [value("image", ["batch", 3, 28, 28])], [value("logits", ["batch", 10])], weights)
