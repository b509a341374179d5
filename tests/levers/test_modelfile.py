"""Nodes put in order: each after what it reads, also where a branch inside it does the reading."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from hasten.errors import Failed
from hasten.levers.modelfile import in_order


def chain(order: list[int]) -> onnx.ModelProto:
    """x + 1 + 1 + ..., whose last step is taken in a branch that reads the value before it; nodes in this order."""
    count = len(order)
    steps = [helper.make_node("Add", [f"v{i}", "one"], [f"v{i + 1}"]) for i in range(count - 1)]
    branch = helper.make_graph(
        [helper.make_node("Add", [f"v{count - 1}", "one"], ["inside"])],
        "branch",
        [],
        [helper.make_tensor_value_info("inside", TensorProto.FLOAT, [2])],
    )
    steps.append(helper.make_node("If", ["yes"], ["y"], then_branch=branch, else_branch=branch))
    graph = helper.make_graph(
        [steps[i] for i in order],
        "chain",
        [helper.make_tensor_value_info("v0", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
        [
            helper.make_tensor("one", TensorProto.FLOAT, [], [1.0]),
            helper.make_tensor("yes", TensorProto.BOOL, [], [True]),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@given(st.permutations(range(6)))
def test_any_order_becomes_one_that_runs(order: list[int]) -> None:
    model = chain(list(order))
    assert in_order(model) == (list(order) != list(range(6)))
    onnx.checker.check_model(model)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert session.run(None, {"v0": np.zeros(2, np.float32)})[0].tolist() == [6.0, 6.0]
    assert not in_order(model), "what is in order stays"


def test_a_circle_is_refused() -> None:
    model = chain([0, 1, 2])
    model.graph.node[0].input[0] = "v2"
    with pytest.raises(Failed, match="circle"):
        in_order(model)
