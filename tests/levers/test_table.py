"""One-hot products as tables: the same numbers, whatever the number; other graphs are left alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from hasten.levers.table import tabulate

COUNT, WIDTH = 16, 4


def model(row: np.ndarray, after: bool = True) -> Any:
    """Numbers [n, 5] to tanh(one_hot @ w + b), once as it is and once times itself; or to the product alone."""
    rng = np.random.default_rng(0)
    constants = {
        "row": row,
        "w": rng.normal(size=(COUNT, WIDTH)).astype(np.float32),
        "b": rng.normal(size=(1, 1, WIDTH)).astype(np.float32),
        "axes": np.array([2], np.int64),
    }
    nodes = [
        helper.make_node("Unsqueeze", ["x", "axes"], ["u"]),
        helper.make_node("Equal", ["u", "row"], ["e"]),
        helper.make_node("Cast", ["e"], ["h"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["h", "w"], ["m" if after else "y"]),
    ]
    if after:
        nodes += [
            helper.make_node("Add", ["m", "b"], ["a"]),
            helper.make_node("Tanh", ["a"], ["t"]),
            helper.make_node("Mul", ["t", "a"], ["g"]),
            helper.make_node("ReduceMean", ["g"], ["y"], axes=[1], keepdims=0),
        ]
    graph = helper.make_graph(
        nodes,
        "one_hot",
        [helper.make_tensor_value_info("x", TensorProto.INT32, ["n", 5])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def answers(proto: Any, numbers: np.ndarray) -> Any:
    return ort.InferenceSession(proto.SerializeToString()).run(None, {"x": numbers})[0]


def test_a_table_gives_the_same_numbers_also_out_of_range() -> None:
    numbers = np.array([[0, 1, 15, 16, -1], [7, 7, 300, 2, 3]], np.int32)
    for after in (True, False):
        proto = model(np.arange(COUNT, dtype=np.int32).reshape(1, 1, COUNT), after)
        before = answers(proto, numbers)
        assert tabulate(proto) == 1
        kinds = {node.op_type for node in proto.graph.node}
        assert not kinds & {"MatMul", "Equal", "Tanh"}
        assert ("ReduceMean" in kinds) == after
        np.testing.assert_allclose(answers(proto, numbers), before, rtol=1e-6, atol=1e-6)


def test_a_comparison_with_other_numbers_is_left_alone() -> None:
    proto = model(np.arange(1, COUNT + 1, dtype=np.int32).reshape(1, 1, COUNT))
    before = proto.SerializeToString()
    assert tabulate(proto) == 0
    assert proto.SerializeToString() == before
