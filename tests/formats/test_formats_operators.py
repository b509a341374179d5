"""FLOPs and bytes against counts by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_models as models
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from hasten import formats
from hasten.errors import InvalidInput
from hasten.formats.arithmetic import Known, flops
from hasten.formats.onnx import operators_of
from hasten.model import Operator

Shapes = Mapping[str, Sequence[int]]


def count(proto: onnx.ModelProto, folder: Path, **shapes: Sequence[int]) -> dict[str, Operator]:
    return {operator.name: operator for operator in operators_of(models.save(proto, folder / "m.onnx"), shapes)}


def single(node: onnx.NodeProto, inputs: Mapping[str, Sequence[int]], *weights: onnx.TensorProto) -> onnx.ModelProto:
    values = [models.value(name, [f"{name}{at}" for at in range(len(shape))]) for name, shape in inputs.items()]
    return models.model([node], values, [models.value(node.output[0], None)], weights)


def test_a_convolution(tmp_path: Path) -> None:
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"], "c", strides=[2, 2], pads=[1, 1, 1, 1])
    weights = (models.weight("w", 16, 3, 3, 3), models.weight("b", 16))
    operator = count(single(node, {"x": (2, 3, 8, 8)}, *weights), tmp_path, x=(2, 3, 8, 8))["c"]
    outputs = 2 * 16 * 4 * 4
    assert operator.output_shape == (2, 16, 4, 4)
    assert operator.flops == outputs * (2 * 3 * 3 * 3) + outputs
    assert operator.weight_bytes == 4 * (16 * 27 + 16)
    assert operator.bytes == 4 * (2 * 3 * 64 + outputs) + operator.weight_bytes
    assert (operator.kind, operator.outputs) == ("Conv", ("y",))


def test_a_depthwise_convolution_and_a_transposed_one(tmp_path: Path) -> None:
    node = helper.make_node("Conv", ["x", "w"], ["y"], "c", group=8)
    proto = single(node, {"x": (1, 8, 10, 10)}, models.weight("w", 8, 1, 3, 3))
    assert count(proto, tmp_path, x=(1, 8, 10, 10))["c"].flops == 2 * 8 * 8 * 8 * 9
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], "c", strides=[2, 2])
    proto = single(node, {"x": (1, 8, 5, 5)}, models.weight("w", 8, 4, 2, 2))
    operator = count(proto, tmp_path, x=(1, 8, 5, 5))["c"]
    assert (operator.output_shape, operator.flops) == ((1, 4, 10, 10), 2 * 8 * 25 * 4 * 4)


def test_a_batched_matmul(tmp_path: Path) -> None:
    proto = single(helper.make_node("MatMul", ["a", "b"], ["y"], "m"), {"a": (2, 1, 3, 4), "b": (5, 4, 6)})
    operator = count(proto, tmp_path, a=(2, 1, 3, 4), b=(5, 4, 6))["m"]
    assert operator.flops == 2 * (2 * 5) * 3 * 4 * 6
    assert operator.bytes == 4 * (2 * 3 * 4 + 5 * 4 * 6 + 2 * 5 * 3 * 6)
    assert operator.weight_bytes == 0


def test_a_gemm(tmp_path: Path) -> None:
    node = helper.make_node("Gemm", ["x", "w", "b"], ["y"], "g", transB=1)
    proto = single(node, {"x": (7, 32)}, models.weight("w", 10, 32), models.weight("b", 10))
    assert count(proto, tmp_path, x=(7, 32))["g"].flops == 2 * 7 * 32 * 10 + 7 * 10


def test_integer_and_quantised_products_count_as_their_floating_twins(tmp_path: Path) -> None:
    node = helper.make_node("MatMulInteger", ["x", "w"], ["y"], "m")
    weight = models.weight("w", 16, 8, dtype=np.int8)
    proto = models.model([node], [models.value("x", ["n", 16], TensorProto.UINT8)],
                         [models.value("y", None, TensorProto.INT32)], [weight])  # fmt: skip
    operator = count(proto, tmp_path, x=(4, 16))["m"]
    assert (operator.flops, operator.weight_bytes, operator.bytes) == (2 * 4 * 16 * 8, 128, 64 + 128 + 4 * 32)
    scale, zero = numpy_helper.from_array(np.float32(1), "s"), numpy_helper.from_array(np.uint8(0), "z")
    node = helper.make_node("QLinearConv", ["x", "s", "z", "w", "s", "zw", "s", "z"], ["y"], "q")
    zero_w = numpy_helper.from_array(np.int8(0), "zw")
    proto = models.model([node], [models.value("x", ["n", 3, 8, 8], TensorProto.UINT8)],
                         [models.value("y", None, TensorProto.UINT8)],
                         [models.weight("w", 4, 3, 3, 3, dtype=np.int8), scale, zero, zero_w])  # fmt: skip
    assert count(proto, tmp_path, x=(1, 3, 8, 8))["q"].flops == 2 * 4 * 36 * 27


def test_a_whole_cnn_adds_up(tmp_path: Path) -> None:
    model = formats.load(models.save(models.cnn(), tmp_path / "m.onnx"))
    operators = formats.operators(model, {"image": (2, 3, 28, 28)})
    by_hand = {
        "conv1": 2 * 8 * 784 * (2 * 27 + 1),
        "relu1": 2 * 8 * 784,
        "pool1": 2 * 8 * 196 * 4,
        "conv2": 2 * 16 * 49 * (2 * 2 * 9),
        "relu2": 2 * 16 * 49,
        "pool2": 2 * 16 * 49,
        "flatten": 0,
        "classifier": 2 * (2 * 16 * 10) + 2 * 10,
    }
    assert {operator.name: operator.flops for operator in operators} == by_hand
    assert sum(operator.weight_bytes for operator in operators) == 4 * model.facts.parameters
    assert operators[-1].output_shape == (2, 10)


def test_elementwise_normalisation_softmax_and_reduction(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Add", ["x", "x"], ["a"], "add"),
        helper.make_node("LayerNormalization", ["a", "g"], ["n"], "norm"),
        helper.make_node("Softmax", ["n"], ["s"], "softmax"),
        helper.make_node("ReduceMean", ["s"], ["y"], "mean", axes=[1], keepdims=0),
    ]
    proto = models.model(nodes, [models.value("x", ["n", 8])], [models.value("y", ["n"])], [models.weight("g", 8)])
    found = count(proto, tmp_path, x=(4, 8))
    assert [operator.flops for operator in found.values()] == [32, 7 * 32, 5 * 32, 32]


def test_recurrence_and_attention(tmp_path: Path) -> None:
    node = helper.make_node("LSTM", ["x", "w", "r"], ["y"], "lstm", hidden_size=16)
    proto = single(node, {"x": (5, 2, 8)}, models.weight("w", 1, 64, 8), models.weight("r", 1, 64, 16))
    found = count(proto, tmp_path, x=(5, 2, 8))["lstm"]
    assert found.output_shape == (5, 1, 2, 16)
    assert found.flops == 5 * 2 * (2 * (64 * 8 + 64 * 16) + 14 * 16)
    node = helper.make_node("Attention", ["q", "k", "v"], ["y"], "a")
    shape = (2, 4, 6, 8)
    proto = single(node, dict.fromkeys("qkv", shape))
    proto.opset_import[0].version = 23
    proto.ir_version = 11
    assert count(proto, tmp_path, q=shape, k=shape, v=shape)["a"].flops == 2 * 4 * 6 * 6 * (4 * 8 + 5)


def test_a_lookup_reads_the_rows_that_it_takes_and_a_view_reads_nothing(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["e"], "lookup"),
        helper.make_node("Flatten", ["e"], ["y"], "flatten"),
    ]
    proto = models.model(nodes, [models.value("ids", ["n", "t"], TensorProto.INT64)], [models.value("y", None)],
                         [models.weight("table", 5000, 16)])  # fmt: skip
    found = count(proto, tmp_path, ids=(2, 3))
    assert found["lookup"].bytes == 8 * 6 + 4 * 6 * 16 * 2
    assert (found["flatten"].bytes, found["flatten"].output_shape) == (0, (2, 48))


def test_shapes_that_the_graph_computes_are_followed(tmp_path: Path) -> None:
    """Shape -> Gather -> Div -> Concat -> Reshape, which ONNX's own inference gives up on."""
    two, zero, eight = (
        numpy_helper.from_array(np.array([n]), name) for n, name in ((2, "two"), (0, "zero"), (8, "eight"))
    )
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["n"]),
        helper.make_node("Div", ["n", "two"], ["half"]),
        helper.make_node("Concat", ["half", "two", "eight"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["r"]),
        helper.make_node("MatMul", ["r", "w"], ["y"], "m"),
    ]
    proto = models.model(nodes, [models.value("x", ["n", 8])], [models.value("y", None)],
                         [two, zero, eight, models.weight("w", 8, 4)])  # fmt: skip
    operator = count(proto, tmp_path, x=(6, 8))["m"]
    assert (operator.output_shape, operator.flops) == ((3, 2, 4), 2 * 6 * 8 * 4)


def test_where_a_shape_depends_on_data_the_operator_is_listed_with_nothing(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("NonZero", ["x"], ["places"], "nonzero"),
        helper.make_node("Cast", ["places"], ["y"], "cast", to=TensorProto.FLOAT),
    ]
    proto = models.model(nodes, [models.value("x", ["n"])], [models.value("y", None)])
    found = count(proto, tmp_path, x=(6,))
    assert (found["cast"].flops, found["cast"].output_shape) == (0, None)


def test_annotations_fill_in_with_the_sizes_of_named_axes(tmp_path: Path) -> None:
    """onnx knows nothing of this operator; the graph says what comes out of it."""
    nodes = [
        helper.make_node("Inverse", ["x"], ["i"], "unknown", domain="com.microsoft"),
        helper.make_node("Relu", ["i"], ["y"], "relu"),
    ]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    proto = models.model(nodes, [models.value("x", ["n", 4])], [models.value("y", None)], opset_imports=opsets)
    proto.graph.value_info.append(models.value("i", ["n", 4]))
    found = count(proto, tmp_path, x=(6, 4))
    assert (found["unknown"].flops, found["relu"].flops) == (0, 24)


def test_an_if_takes_the_costlier_branch_and_lists_its_operators(tmp_path: Path) -> None:
    found = count(models.branching(), tmp_path, x=(3, 64), flag=())
    assert list(found) == ["choice", "down", "up"] or list(found) == ["choice", "small"]
    assert sum(operator.flops for operator in found.values()) == 2 * 3 * 64 * 64


def test_a_loop_counts_its_body_as_often_as_it_runs(tmp_path: Path) -> None:
    body = helper.make_graph(
        [helper.make_node("MatMul", ["state", "w"], ["next"], "step"), helper.make_node("Identity", ["go"], ["on"])],
        "body",
        [
            models.value("i", [], TensorProto.INT64),
            models.value("go", [], TensorProto.BOOL),
            models.value("state", None),
        ],
        [models.value("on", [], TensorProto.BOOL), models.value("next", None)],
    )
    node = helper.make_node("Loop", ["times", "", "x"], ["y"], "loop", body=body)
    times = numpy_helper.from_array(np.array(5), "times")
    proto = models.model(
        [node], [models.value("x", ["n", 8])], [models.value("y", ["n", 8])], [times, models.weight("w", 8, 8)]
    )
    found = count(proto, tmp_path, x=(2, 8))
    assert found["step"].flops == 5 * (2 * 2 * 8 * 8)
    assert found["loop"].output_shape == (2, 8)


def test_shapes_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = models.save(models.mlp(), tmp_path / "m.onnx")
    for shapes in ({"x": (2, 63)}, {"x": (2,)}, {"z": (2, 64)}, {}, {"x": (-1, 64)}):
        with pytest.raises(InvalidInput):
            operators_of(path, shapes)


def test_a_normalisation_that_onnxruntime_wrote_at_an_older_opset_is_read(tmp_path: Path) -> None:
    node = helper.make_node("LayerNormalization", ["x", "g"], ["y"], "norm")
    proto = single(node, {"x": (3, 8)}, models.weight("g", 8))
    proto.opset_import[0].version = 12
    assert formats.inspect(models.save(proto, tmp_path / "m.onnx")).facts.opset == 12
    assert count(proto, tmp_path, x=(3, 8))["norm"].flops == 7 * 24


def test_onnxruntimes_fused_operators_count(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("FusedMatMul", ["x", "w"], ["m"], "product", domain="com.microsoft", transB=1),
        helper.make_node("BiasGelu", ["m", "b"], ["y"], "gelu", domain="com.microsoft"),
    ]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    proto = models.model(nodes, [models.value("x", ["n", 8])], [models.value("y", None)],
                         [models.weight("w", 4, 8), models.weight("b", 4)], opset_imports=opsets)  # fmt: skip
    found = count(proto, tmp_path, x=(3, 8))
    assert (found["product"].flops, found["gelu"].flops) == (2 * 3 * 8 * 4, 9 * 12)


@given(st.lists(st.integers(1, 5), max_size=3), st.integers(1, 5), st.integers(1, 5), st.integers(1, 5))
def test_a_matmul_counts_two_operations_for_each_product(batch: list[int], m: int, k: int, n: int) -> None:
    left, right = Known("float32", (*batch, m, k)), Known("float32", (k, n))
    out = Known("float32", np.matmul(np.zeros(left.shape), np.zeros(right.shape)).shape)
    assert flops("MatMul", {}, [left, right], [out]) == 2 * k * int(np.prod(out.shape))


@given(
    st.lists(
        st.sampled_from(["MatMul", "Conv", "Gemm", "LSTM", "Attention", "MaxPool", "Einsum", "Nonsense"]), min_size=1
    )
)
def test_what_is_not_known_counts_zero(kinds: list[str]) -> None:
    for kind in kinds:
        assert flops(kind, {}, [Known("float32"), Known("float32")], [Known("float32")]) == 0
        assert flops(kind, {}, [], []) == 0
