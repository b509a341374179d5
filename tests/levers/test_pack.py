"""Packed encoders give the outputs of the padded ones, whatever their graphs look like."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from lever_models import cpu
from onnx import TensorProto, helper, numpy_helper

from hasten import formats
from hasten.data import SampleSet
from hasten.errors import Failed
from hasten.goal import Goal
from hasten.levers import Case, lever
from hasten.recipe import Recipe, Step
from hasten.runner import open_runner
from hasten.variant import Variant
from hasten.workload import Padding, Workload

WIDTH, HEADS, VOCABULARY, LONGEST = 16, 2, 50, 64


def encoder(path: Path, pooling: str = "matmul", positions: str = "gather", mask: str = "add") -> Path:
    """One layer of a transformer encoder with learnt positions."""
    draw = np.random.default_rng(0)
    weights = {
        "words": draw.normal(0, 1, (VOCABULARY, WIDTH)),
        "places": draw.normal(0, 1, (LONGEST, WIDTH)),
        **{name: draw.normal(0, 0.3, (WIDTH, WIDTH)) for name in ("q", "k", "v", "o", "up", "down")},
        "one": np.ones(WIDTH),
        "zero": np.zeros(WIDTH),
        "scale": np.array(0.35),
        "unit": np.array(1.0),
        "far": np.array(-1e9),
        "slope": -0.1 * np.abs(np.arange(LONGEST)[:, None] - np.arange(LONGEST)[None, :]),
    }
    numbers = {
        "split": [0, 0, HEADS, WIDTH // HEADS], "join": [0, 0, WIDTH], "axis1": [1], "axes12": [1, 2], "from0": [0],
        "step": [1], "start": 0, "delta": 1, "ninf": 0, "both": [0, 1],
    }  # fmt: skip

    def node(kind: str, inputs: list[str], output: str, **attributes: object) -> onnx.NodeProto:
        return helper.make_node(kind, inputs, [output], name=output, **attributes)

    nodes = [node("Gather", ["words", "ids"], "embedded"), node("Shape", ["ids"], "shape", start=1, end=2)]
    if positions == "gather":
        nodes += [
            node("Squeeze", ["shape"], "length"),
            node("Range", ["start", "length", "delta"], "range"),
            node("Gather", ["places", "range"], "placed"),
        ]
    else:
        nodes.append(node("Slice", ["places", "from0", "shape", "from0", "step"], "placed"))
    nodes += [
        node("Add", ["embedded", "placed"], "summed"),
        node("LayerNormalization", ["summed", "one", "zero"], "x"),
        node("Cast", ["mask"], "kept", to=TensorProto.FLOAT),
        node("Sub", ["unit", "kept"], "hidden_places"),
        node("Mul", ["hidden_places", "far"], "flat_bias"),
        node("Unsqueeze", ["flat_bias", "axes12"], "bias"),
    ]
    for name in ("q", "k", "v"):
        order = [0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]
        nodes += [
            node("MatMul", ["x", name], f"{name}_flat"),
            node("Reshape", [f"{name}_flat", "split"], f"{name}_heads"),
            node("Transpose", [f"{name}_heads"], f"{name}_ready", perm=order),
        ]
    nodes += [node("MatMul", ["q_ready", "k_ready"], "raw"), node("Mul", ["raw", "scale"], "scores")]
    if mask == "slope":  # a relative bias beside the mask: the scores hold something that must stay
        nodes += [
            node("Concat", ["shape", "shape"], "square", axis=0),
            node("Concat", ["from0", "from0"], "corner", axis=0),
            node("Slice", ["slope", "corner", "square", "both"], "near"),
            node("Add", ["near", "bias"], "leaning"),
            node("Add", ["scores", "leaning"], "masked"),
        ]
    else:
        nodes.append(node("Add", ["scores", "bias"], "masked"))
    nodes += [
        node("Softmax", ["masked"], "attention", axis=-1),
        node("MatMul", ["attention", "v_ready"], "mixed"),
        node("Transpose", ["mixed"], "mixed_back", perm=[0, 2, 1, 3]),
        node("Reshape", ["mixed_back", "join"], "joined"),
        node("MatMul", ["joined", "o"], "projected"),
        node("Add", ["projected", "x"], "residual"),
        node("LayerNormalization", ["residual", "one", "zero"], "y"),
        node("MatMul", ["y", "up"], "raised"),
        node("Relu", ["raised"], "bent"),
        node("MatMul", ["bent", "down"], "lowered"),
        node("Add", ["lowered", "y"], "again"),
        node("LayerNormalization", ["again", "one", "zero"], "tokens"),
    ]
    shape: list[object] = ["rows", WIDTH]
    if pooling == "matmul":
        nodes += [
            node("ReduceSum", ["kept", "axis1"], "count"),
            node("Div", ["kept", "count"], "share"),
            node("Unsqueeze", ["share", "axis1"], "share_row"),
            node("MatMul", ["share_row", "tokens"], "pooled_row"),
            node("Squeeze", ["pooled_row", "axis1"], "out"),
        ]
    elif pooling == "sum":
        numbers["axis2"] = [2]
        nodes += [
            node("Unsqueeze", ["kept", "axis2"], "kept_wide"),
            node("Mul", ["tokens", "kept_wide"], "only_kept"),
            node("ReduceSum", ["only_kept", "axis1"], "total", keepdims=0),
            node("ReduceSum", ["kept_wide", "axis1"], "count", keepdims=0),
            node("Div", ["total", "count"], "mean"),
            node("MatMul", ["mean", "o"], "out"),
        ]
    elif pooling == "first":
        nodes += [node("Gather", ["tokens", "start"], "begun", axis=1), node("Tanh", ["begun"], "out")]
    elif pooling == "max":
        nodes.append(node("ReduceMax", ["tokens", "axis1"], "out", keepdims=0))
    else:
        nodes.append(node("Identity", ["tokens"], "out"))
        shape = ["rows", "tokens", WIDTH]
    graph = helper.make_graph(
        nodes,
        "encoder",
        [helper.make_tensor_value_info(name, TensorProto.INT64, ["rows", "tokens"]) for name in ("ids", "mask")],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(np.asarray(array, np.float32), name) for name, array in weights.items()]
        + [numpy_helper.from_array(np.asarray(value, np.int64), name) for name, value in numbers.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), str(path))
    return path


def case_of(path: Path, folder: Path, outputs: dict[str, int] | None = None) -> Case:
    draw = np.random.default_rng(1)
    samples = [
        {"ids": draw.integers(0, VOCABULARY, n).astype(np.int64), "mask": np.ones(n, np.int64)}
        for n in draw.integers(3, 40, 60)
    ]
    handle = SampleSet.write(folder / "samples", samples)
    padding = Padding({"ids": 0.0, "mask": 0.0}, 0, True, "", outputs or {})
    model = formats.inspect(path)
    workload = Workload(model, handle, "cosine", "offline", "out", padding)
    lengths = tuple(len(sample["ids"]) for sample in samples)
    recipe = Recipe(runtime={"name": "openvino", "precision": "fp32"}, runner={"batch": 32})
    return Case(
        workload,
        Goal.parse("throughput", "1pt"),
        cpu(),
        recipe,
        folder / "work",
        workload.split(),
        lengths=lengths,
        runtimes=("onnxruntime", "openvino"),
    )


PACKED = {"form": "pack", "row_tokens": 64, "rows": 3, "segments": 6}


@pytest.mark.parametrize("positions", ["gather", "slice"])
@pytest.mark.parametrize(
    ("pooling", "mask"), [("matmul", "add"), ("sum", "add"), ("first", "add"), ("tokens", "slope")]
)
def test_a_packed_encoder_gives_the_same_outputs(tmp_path, pooling, positions, mask):
    case = case_of(
        encoder(tmp_path / "m.onnx", pooling, positions, mask), tmp_path, {"out": 0} if pooling == "tokens" else None
    )
    brought = Variant({"main": case.workload.model})
    packed = lever("pack").apply(brought, Step("pack"), case)
    samples = list(SampleSet.open(case.workload.samples.path))
    signature, padding = case.workload.model.signature, case.workload.padding
    with open_runner(brought, Recipe(runner={"batch": 1}), signature, padding) as runner:
        wanted = runner.run(samples)
    for runtime, static in (("onnxruntime", False), ("openvino", True)):
        recipe = Recipe((Step("pack"),), {"name": runtime, "precision": "fp32"}, {**PACKED, "static": static})
        with open_runner(packed, recipe, signature, padding) as runner:
            found = runner.run(samples)
            one = runner.run_one(samples[3])
        for own, expected in zip(found, wanted, strict=True):
            assert own["out"].shape == expected["out"].shape
            np.testing.assert_allclose(own["out"], expected["out"], atol=2e-4)
        np.testing.assert_allclose(one["out"], wanted[3]["out"], atol=2e-4)


def test_a_pooling_that_is_not_known_is_refused(tmp_path):
    case = case_of(encoder(tmp_path / "m.onnx", "max"), tmp_path)
    with pytest.raises(Failed, match="pooled from its tokens in a way that is not known"):
        lever("pack").apply(Variant({"main": case.workload.model}), Step("pack"), case)


def test_a_packed_model_is_quantised_and_keeps_its_outputs(tmp_path):
    case = case_of(encoder(tmp_path / "m.onnx"), tmp_path)
    brought = Variant({"main": case.workload.model})
    packed = lever("pack").apply(brought, Step("pack"), case)
    quantised = lever("int8").apply(packed, Step("int8", {"scheme": "mixed", "transformer": True}), case)
    samples = list(SampleSet.open(case.workload.samples.path))
    signature, padding = case.workload.model.signature, case.workload.padding
    with open_runner(brought, Recipe(runner={"batch": 1}), signature, padding) as runner:
        wanted = np.stack([own["out"] for own in runner.run(samples)])
    recipe = Recipe((Step("pack"), Step("int8")), {"name": "openvino", "precision": "fp32"}, {**PACKED, "static": True})
    with open_runner(quantised, recipe, signature, padding) as runner:
        found = np.stack([own["out"] for own in runner.run(samples)])
    cosine = (found * wanted).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(wanted, axis=1)
    assert cosine.mean() > 0.98


def test_it_is_proposed_for_mixed_lengths_before_any_other_step(tmp_path):
    case = case_of(encoder(tmp_path / "m.onnx"), tmp_path)
    first = list(lever("pack").propose(case))
    assert first
    assert all(p.recipe.steps == (Step("pack"),) and p.recipe.runner["form"] == "pack" for p in first)
    quantised = replace(case, recipe=case.recipe.with_step(Step("int8", {"scheme": "mixed"})))
    assert {p.recipe.steps[0].lever for p in lever("pack").propose(quantised)} == {"pack"}
    again = list(lever("pack").propose(replace(case, recipe=first[0].recipe)))
    assert {p.recipe.runner["rows"] for p in again} != {first[0].recipe.runner["rows"]}


@pytest.mark.parametrize(
    "change",
    [
        {"lengths": ()},
        {"recipe": Recipe(runtime={"name": "onnxruntime"})},
        {"recipe": Recipe((Step("fuse"),), {"name": "openvino"})},
    ],
)
def test_it_is_not_proposed_where_it_cannot_help(tmp_path, change):
    case = replace(case_of(encoder(tmp_path / "m.onnx"), tmp_path), **change)
    assert list(lever("pack").propose(case)) == []


def test_a_recipe_that_packs_needs_a_model_that_was_packed(tmp_path):
    from hasten.errors import InvalidInput

    case = case_of(encoder(tmp_path / "m.onnx"), tmp_path)
    brought = Variant({"main": case.workload.model})
    with pytest.raises(InvalidInput, match="was not made for packing"):
        open_runner(brought, Recipe(runner=PACKED), case.workload.model.signature, case.workload.padding)


def test_packing_comes_behind_what_makes_and_rewrites_the_graph(tmp_path):
    case = case_of(encoder(tmp_path / "m.onnx"), tmp_path)
    steps = (Step("rewrite"), Step("int8", {"scheme": "mixed", "transformer": True}))
    found = next(iter(lever("pack").propose(replace(case, recipe=replace(case.recipe, steps=steps)))))
    assert [step.lever for step in found.recipe.steps] == ["rewrite", "pack", "int8"]
    assert "rows" not in found.recipe.steps[0].options["rules"]
    alone = (Step("rewrite", {"rules": ["rows"]}),)
    found = next(iter(lever("pack").propose(replace(case, recipe=replace(case.recipe, steps=alone)))))
    assert [step.lever for step in found.recipe.steps] == ["pack"]
