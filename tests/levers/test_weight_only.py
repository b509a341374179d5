"""Weights in 4 and 8 bits side by side: each operator has what the recipe says, and INT8 ones stay INT8."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from lever_models import case_of, mlp
from packed_weights import DRAW, model, packed, run

from hasten.errors import InvalidInput
from hasten.levers.base import Case
from hasten.levers.int8 import Int8
from hasten.levers.weight_only import WeightOnly
from hasten.levers.weights_openvino import numbers
from hasten.recipe import Recipe, Step
from hasten.variant import Variant


def on(runtime: str) -> Recipe:
    return Recipe(runtime={"name": runtime, "precision": "fp32"})


def applied(case: Case, *steps: Step) -> Path:
    variant = Variant({"main": case.workload.model})
    for step in steps:
        variant = (Int8() if step.lever == "int8" else WeightOnly()).apply(variant, step, case)
    return variant.main.path


def kinds(path: Path) -> dict[str, str]:
    """The type of the constant that each product's weights are made of, and whether its input is quantised."""
    import openvino as ov

    found = {}
    for op in ov.Core().read_model(path).get_ordered_ops():
        if op.get_type_name() == "MatMul":
            node = op.input_value(1).get_node()
            while node.get_type_name() != "Constant":
                node = node.input_value(0).get_node()
            quantised = op.input_value(0).get_node().get_type_name() == "FakeQuantize"
            found[op.get_friendly_name()] = node.get_element_type().get_type_name() + (
                " quantised" if quantised else ""
            )
    return found


def test_each_product_has_the_bits_that_the_recipe_gives_it(tmp_path: Path) -> None:
    case = case_of(mlp(tmp_path / "m.onnx", 5, width=128), tmp_path, on("openvino"))
    names = [*kinds(applied(case, Step("weight_only", {"bits": 8})))]
    step = Step("weight_only", {"bits": 4, "group": 32, "eight": [names[1]], "keep": [names[2]]})
    found = kinds(applied(case, step))
    assert found[names[0]] == found[names[3]] == "u4"
    assert found[names[1]] == "u8"
    assert found[names[2]] == "f32"
    assert Recipe.from_toml(on("openvino").with_step(step).to_toml()).steps == (step,)


def test_weights_that_came_in_four_bits_stay_as_they_are_where_they_are_kept(tmp_path: Path) -> None:
    case = case_of(mlp(tmp_path / "m.onnx", 4, width=128), tmp_path, on("openvino"))
    four = Step("weight_only", {"bits": 4, "group": 32})
    names = [*kinds(applied(case, four))]
    found = kinds(applied(case, four, Step("weight_only", {"bits": 8, "keep": names[:2]})))
    assert [found[name] for name in names[:3]] == ["u4", "u4", "u8"]


def test_what_int8_left_takes_weights_of_few_bits_and_the_rest_stays_int8(tmp_path: Path) -> None:
    case = case_of(mlp(tmp_path / "m.onnx", 4, width=128), tmp_path, on("openvino"))
    names = [*kinds(applied(case, Step("weight_only", {"bits": 8})))]
    int8 = Step("int8", {"keep": [names[1]]})
    found = kinds(applied(case, int8, Step("weight_only", {"bits": 8})))
    assert found[names[0]] == found[names[3]] == "i8 quantised"
    assert found[names[1]] == "u8"


def test_onnx_runtime_has_both_widths_in_one_file(tmp_path: Path) -> None:
    case = case_of(mlp(tmp_path / "m.onnx", 4, width=128), tmp_path, on("onnxruntime"))
    step = Step("weight_only", {"bits": 4, "eight": ["layer1"], "keep": ["layer2"]})
    nodes = onnx.load(str(applied(case, step))).graph.node
    bits = [onnx.helper.get_node_attr_value(n, "bits") for n in nodes if n.op_type == "MatMulNBits"]
    assert sorted(bits) == [4, 4, 8]
    assert [n.name for n in nodes if n.op_type == "MatMul"] == ["layer2"]


@pytest.mark.parametrize("runtime", ["openvino", "onnxruntime"])
def test_eight_makes_no_sense_where_all_have_eight(tmp_path: Path, runtime: str) -> None:
    case = case_of(mlp(tmp_path / "m.onnx", 2, width=128), tmp_path, on(runtime))
    with pytest.raises(InvalidInput, match="eight"):
        applied(case, Step("weight_only", {"bits": 8, "eight": ["*"]}))


@pytest.mark.parametrize("kind", ["u4", "i4", "u8", "f16"])
def test_numbers_are_those_that_openvino_makes(kind: str) -> None:
    import openvino as ov
    from openvino import opset13 as op

    held = ov.Tensor(getattr(ov.Type, kind), ov.Shape([6, 8]))
    held.data[...] = DRAW.integers(0, 255, held.data.shape) if kind != "f16" else DRAW.normal(size=(6, 8))
    shift = op.convert(op.constant(DRAW.integers(0, 16, (6, 1)).astype(np.uint8)), "f16")
    half = op.subtract(op.convert(op.constant(held), "f16"), shift)
    scale = op.constant(DRAW.uniform(0.1, 1, (6, 1)).astype(np.float32))
    node: Any = op.reshape(op.multiply(op.convert(half, "f32"), scale), op.constant(np.array([4, 12])), False)
    wanted = ov.Core().compile_model(ov.Model([node], []), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})([])[0]
    np.testing.assert_allclose(numbers(node), wanted, rtol=2e-3, atol=2e-3)


def test_numbers_of_packed_weights_give_the_same_products() -> None:
    graph = model(packed, [4])
    x = DRAW.normal(size=(1, 2, 8)).astype(np.float32)
    product = next(op for op in graph.get_ordered_ops() if op.get_type_name() == "MatMul")
    wanted = np.tanh(np.maximum(x, 0) @ numbers(product.input_value(1).get_node()).T)
    np.testing.assert_allclose(run(graph, x)[0], wanted, rtol=1e-4, atol=1e-4)
