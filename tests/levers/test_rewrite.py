"""Graph rewrites: the same outputs at every shape, less work, and nothing changed where the numbers would be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from lever_models import cpu, paper_case
from onnx import TensorProto, helper, numpy_helper

from hasten import formats
from hasten.data import SampleSet
from hasten.errors import Failed, InvalidInput
from hasten.goal import Goal
from hasten.levers import Case, lever
from hasten.levers.modelfile import load_onnx
from hasten.levers.rewrite import RULES, Rewrite, rewritten, unread_share
from hasten.levers.rewrite_probe import batches
from hasten.measurement import Trial
from hasten.model import Operator, Signature, Tensor
from hasten.recipe import Recipe, Step
from hasten.runner import open_runner
from hasten.variant import Variant
from hasten.workload import Padding, Workload

WIDTH, HEADS, VOCABULARY = 16, 2, 40
HEAD = WIDTH // HEADS


def encoder(path: Path, layers: int = 2, read: str = "first", positions: int = 32) -> Path:
    """A BERT as PyTorch exports it: guarded attention, half of the scale on each side, keys transposed in three steps.

    `read` is what leaves the graph: the first token ("first"), the last ("last"), all of them ("tokens"), or the first
    and all ("both").
    """
    draw = np.random.default_rng(0)
    weights: dict[str, Any] = {
        "words": draw.normal(size=(VOCABULARY, WIDTH)),
        "places": draw.normal(size=(positions, WIDTH)),
        "kinds": draw.normal(size=(2, WIDTH)),
        "half": np.array(HEAD**-0.25),
        "zero": np.array(0.0),
        "hidden": np.array(-np.inf),
        "one": np.ones(WIDTH),
        "none": np.zeros(WIDTH),
        "out_w": draw.normal(size=(WIDTH, 3)),
    }
    numbers: dict[str, Any] = {
        "first": 0,
        "last": -1,
        "at0": [0],
        "at1": [1],
        "at2": [2],
        "at12": [1, 2],
        "kind": [[0]],
        "by_head": [0, 0, HEADS, HEAD],
        "by_row": [-1, 0, HEAD],
        "joined": [0, 0, WIDTH],
        "width": [HEAD],
        "heads": [HEADS],
    }
    node = helper.make_node
    nodes = [
        node("Gather", ["words", "ids"], ["word"]),
        node("Shape", ["ids"], ["shape"]),
        node("Slice", ["shape", "at1", "at2", "at0"], ["length"]),
        node("Slice", ["places", "at0", "length", "at0"], ["place"]),
        node("Expand", ["kind", "shape"], ["type_ids"]),
        node("Gather", ["kinds", "type_ids"], ["type"]),
        node("Add", ["word", "type"], ["typed"]),
        node("Add", ["typed", "place"], ["summed"]),
        node("LayerNormalization", ["summed", "one", "none"], ["x0"], axis=-1),
        node("Cast", ["mask"], ["seen"], to=TensorProto.BOOL),
        node("Unsqueeze", ["seen", "at12"], ["seen_wide"]),
        node("Where", ["seen_wide", "zero", "hidden"], ["bias"]),
        node("Slice", ["shape", "at0", "at1", "at0"], ["count"]),
    ]
    for i in range(layers):
        for name in "qkvo":
            weights[f"{name}{i}_w"] = draw.normal(size=(WIDTH, WIDTH)) / 4
        weights[f"up{i}_w"], weights[f"down{i}_w"] = (
            draw.normal(size=(WIDTH, 32)) / 4,
            draw.normal(size=(32, WIDTH)) / 4,
        )
        x = f"x{i}"
        for name in "qkv":
            nodes += [
                node("MatMul", [x, f"{name}{i}_w"], [f"{name}{i}_m"]),
                node("Add", [f"{name}{i}_m", "one"], [f"{name}{i}_a"]),
                node("Reshape", [f"{name}{i}_a", "by_head"], [f"{name}{i}_r"]),
                node("Transpose", [f"{name}{i}_r"], [f"{name}{i}"], perm=[0, 2, 1, 3]),
            ]
        nodes += [
            node("Concat", ["minus", "length", "width"], [f"flat{i}"], axis=0),
            node("Reshape", [f"k{i}", f"flat{i}"], [f"k{i}_flat"]),
            node("Transpose", [f"k{i}_flat"], [f"k{i}_turned"], perm=[0, 2, 1]),
            node("Concat", ["count", "heads", "width", "length"], [f"whole{i}"], axis=0),
            node("Reshape", [f"k{i}_turned", f"whole{i}"], [f"k{i}_t"]),
            node("Mul", [f"q{i}", "half"], [f"q{i}_s"]),
            node("Mul", [f"k{i}_t", "half"], [f"k{i}_s"]),
            node("MatMul", [f"q{i}_s", f"k{i}_s"], [f"scores{i}"]),
            node("Add", [f"scores{i}", "bias"], [f"masked{i}"]),
            node("Softmax", [f"masked{i}"], [f"p{i}"], axis=-1),
            node("IsNaN", [f"p{i}"], [f"nan{i}"]),
            node("Where", [f"nan{i}", "zero", f"p{i}"], [f"safe{i}"]),
            node("MatMul", [f"safe{i}", f"v{i}"], [f"mixed{i}"]),
            node("Transpose", [f"mixed{i}"], [f"back{i}"], perm=[0, 2, 1, 3]),
            node("Reshape", [f"back{i}", "joined"], [f"rows{i}"]),
            node("MatMul", [f"rows{i}", f"o{i}_w"], [f"o{i}"]),
            node("Add", [f"o{i}", x], [f"with{i}"]),
            node("LayerNormalization", [f"with{i}", "one", "none"], [f"n{i}"], axis=-1),
            node("MatMul", [f"n{i}", f"up{i}_w"], [f"up{i}"]),
            node("Erf", [f"up{i}"], [f"bent{i}"]),
            node("MatMul", [f"bent{i}", f"down{i}_w"], [f"down{i}"]),
            node("Add", [f"down{i}", f"n{i}"], [f"sum{i}"]),
            node("LayerNormalization", [f"sum{i}", "one", "none"], [f"x{i + 1}"], axis=-1),
        ]
    numbers["minus"] = [-1]
    end = f"x{layers}"
    results = []
    if read in ("first", "last", "both"):
        taken = "last" if read == "last" else "first"
        nodes += [node("Gather", [end, taken], ["picked"], axis=1), node("MatMul", ["picked", "out_w"], ["logits"])]
        results.append(helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["rows", 3]))
    if read in ("tokens", "both"):
        nodes.append(node("Identity", [end], ["tokens"]))
        results.append(helper.make_tensor_value_info("tokens", TensorProto.FLOAT, ["rows", "length", WIDTH]))
    graph = helper.make_graph(
        nodes,
        "encoder",
        [helper.make_tensor_value_info(name, TensorProto.INT64, ["rows", "length"]) for name in ("ids", "mask")],
        results,
        [numpy_helper.from_array(np.asarray(array, np.float32), name) for name, array in weights.items()]
        + [numpy_helper.from_array(np.asarray(value, np.int64), name) for name, value in numbers.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), str(path))
    return path


def batch(rows: int, length: int, seed: int = 0) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    mask = np.ones((rows, length), np.int64)
    mask[-1, max(1, length - 2) :] = 0
    return {"ids": draw.integers(0, VOCABULARY, (rows, length)), "mask": mask}


PROBES = [batch(1, 5), batch(2, 5), batch(1, 8)]


def kinds(proto: Any) -> dict[str, int]:
    names = [node.op_type for node in proto.graph.node]
    return {name: names.count(name) for name in set(names)}


def answers(proto: Any, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    return list(ort.InferenceSession(proto.SerializeToString()).run(None, inputs))


def rewrite(path: Path, rules: list[str], folder: Path) -> tuple[Any, Any]:
    """The graph before and after the rules; the outputs agree at shapes that no probe had."""
    before = load_onnx(path)
    after = rewritten(load_onnx(path), PROBES, rules, folder)
    for inputs in (batch(1, 1), batch(3, 21, 1), batch(4, 30, 2)):
        for old, new in zip(answers(before, inputs), answers(after, inputs), strict=True):
            np.testing.assert_allclose(new, old, atol=1e-5)
    return before, after


def longest(proto: Any, name: str, inputs: dict[str, np.ndarray]) -> tuple[int, ...]:
    """The shape of the value `name` when the graph runs."""
    probe = onnx.ModelProto()
    probe.CopyFrom(proto)
    probe.graph.output.append(helper.make_empty_tensor_value_info(name))
    return answers(probe, inputs)[-1].shape


def test_attention_as_pytorch_exports_it_becomes_what_runtimes_know(tmp_path):
    import openvino as ov

    path = encoder(tmp_path / "m.onnx", read="tokens")
    before, after = rewrite(path, ["attention", "transposes"], tmp_path)
    assert kinds(before)["IsNaN"] == 2
    assert kinds(before)["Where"] == 3
    assert "IsNaN" not in kinds(after)
    assert kinds(after)["Where"] == 1, "the mask alone, once for all layers"
    assert kinds(after)["Mul"] == 2, "one scale in each layer"
    assert kinds(after)["Transpose"] == 2 * 4, "queries, keys, values and what comes back"
    infinite = [t.name for t in after.graph.initializer if np.isinf(numpy_helper.to_array(t)).any()]
    read = {name for node in after.graph.node for name in node.input}
    assert not read & set(infinite), "no row of scores may end as NaN"
    onnx.save(after, str(tmp_path / "after.onnx"))
    core = ov.Core()
    for inputs in (batch(2, 9), batch(1, 3)):
        compiled = core.compile_model(str(tmp_path / "after.onnx"), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        np.testing.assert_allclose(compiled(inputs)[0], answers(before, inputs)[0], atol=1e-4)


def test_a_row_that_looks_at_nothing_gives_numbers(tmp_path):
    _, after = rewrite(encoder(tmp_path / "m.onnx"), ["attention"], tmp_path)
    nothing = batch(1, 4)
    nothing["mask"][:] = 0
    assert np.isfinite(answers(after, nothing)[0]).all()


@pytest.mark.parametrize("read", ["first", "last"])
def test_rows_that_nothing_reads_are_not_computed(tmp_path, read):
    inputs = batch(2, 7)
    _, after = rewrite(encoder(tmp_path / "m.onnx", read=read), ["rows"], tmp_path)
    makers = {name: node for node in after.graph.node for name in node.output}
    up, key = (next(n for n in after.graph.node if w in n.input) for w in ("up1_w", "k1_w"))
    assert longest(after, up.output[0], inputs) == (2, 1, 32), "the last feed-forward block sees one row"
    assert longest(after, key.output[0], inputs) == (2, 7, WIDTH), "its keys are those of all tokens"
    earlier = next(n for n in after.graph.node if "up0_w" in n.input)
    assert longest(after, earlier.output[0], inputs) == (2, 7, 32), "earlier layers compute all rows"
    queries = next(n for n in after.graph.node if "q1_w" in n.input)
    assert makers[queries.input[0]].op_type == "Gather"


@pytest.mark.parametrize("read", ["tokens", "both"])
def test_rows_that_somebody_reads_are_computed(tmp_path, read):
    path = encoder(tmp_path / "m.onnx", read=read)
    with pytest.raises(Failed, match="no rewrite found anything"):
        rewritten(load_onnx(path), PROBES, ["rows"], tmp_path)


def test_a_selection_of_samples_stays_where_it_is(tmp_path):
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"]),
            helper.make_node("Gather", ["h", "first"], ["y"], axis=0),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])],
        [
            numpy_helper.from_array(np.eye(4, dtype=np.float32), "w"),
            numpy_helper.from_array(np.array(0, np.int64), "first"),
        ],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    probes = [{"x": np.ones((n, 4), np.float32)} for n in (1, 2)]
    with pytest.raises(Failed, match="no rewrite found anything"):
        rewritten(proto, probes, ["rows"], tmp_path)


def test_embeddings_are_summed_beforehand(tmp_path):
    before, after = rewrite(encoder(tmp_path / "m.onnx"), ["embedding"], tmp_path)
    assert kinds(after)["Gather"] == kinds(before)["Gather"] - 1
    assert kinds(after)["Add"] == kinds(before)["Add"] - 1
    assert "Expand" not in kinds(after)


def test_all_rules_work_together(tmp_path):
    before, after = rewrite(encoder(tmp_path / "m.onnx", layers=3), list(RULES), tmp_path)
    assert len(after.graph.node) < len(before.graph.node)
    assert "IsNaN" not in kinds(after)
    names = [node.name for node in after.graph.node]
    assert len(set(names)) == len(names)


def test_a_rewrite_that_changes_an_output_is_refused(tmp_path, monkeypatch):
    from hasten.levers import rewrite_embedding

    wrong = lambda op, table, row: op.Mul(table, row)  # noqa: E731  a rule with a mistake in it
    monkeypatch.setattr(rewrite_embedding, "_sum", wrong)
    with pytest.raises(Failed, match="rewriting changes output logits"):
        rewritten(load_onnx(encoder(tmp_path / "m.onnx")), PROBES, ["embedding"], tmp_path)


def test_samples_of_one_size_do_not_show_how_a_graph_follows_it():
    signature = Signature((Tensor("x", "float32", ("n", "length", 4)),), (Tensor("y", "float32", ("n",)),))
    samples = [{"x": np.ones((6, 4), np.float32)}]
    with pytest.raises(Failed, match="axis 1 of x may vary"):
        batches(samples, None, signature)
    padding = Padding({"x": 0.0}, 0, True, "", {})
    shapes = {made["x"].shape for made in batches(samples, padding, signature)}
    assert shapes == {(1, 6, 4), (2, 6, 4), (1, 5, 4)}


def real_case(path: Path, folder: Path) -> Case:
    draw = np.random.default_rng(1)
    samples = [
        {"ids": draw.integers(0, VOCABULARY, n).astype(np.int64), "mask": np.ones(n, np.int64)}
        for n in draw.integers(3, 20, 40)
    ]
    stored = SampleSet.write(folder / "samples", samples)
    padding = Padding({"ids": 0.0, "mask": 0.0}, 0, True, "", {})
    work = Workload(formats.inspect(path), stored, "cosine", "offline", "logits", padding)
    return Case(work, Goal(), cpu(), Recipe(), folder / "work", work.split(), runtimes=("onnxruntime", "openvino"))


def test_the_step_keeps_the_signature_and_the_outputs(tmp_path):
    case = real_case(encoder(tmp_path / "m.onnx"), tmp_path)
    brought = Variant({"main": case.workload.model})
    made = lever("rewrite").apply(brought, Step("rewrite"), case).parts["main"]
    assert made.signature == case.workload.model.signature
    inputs = batch(3, 12)
    old, new = (answers(onnx.load(str(model.path)), inputs)[0] for model in (case.workload.model, made))
    np.testing.assert_allclose(new, old, atol=1e-5)
    assert sorted(file.name for file in made.path.parent.iterdir()) == ["model.onnx"]


def test_a_rewritten_encoder_is_packed(tmp_path):
    case = real_case(encoder(tmp_path / "m.onnx"), tmp_path)
    brought = Variant({"main": case.workload.model})
    rules = [rule for rule in RULES if rule != "rows"]
    written = lever("rewrite").apply(brought, Step("rewrite", {"rules": rules}), case)
    packed = lever("pack").apply(written, Step("pack"), case)
    samples = list(SampleSet.open(case.workload.samples.path))
    signature, padding = case.workload.model.signature, case.workload.padding
    runner = {"form": "pack", "row_tokens": 32, "rows": 3, "segments": 6}
    with open_runner(brought, Recipe(runner={"batch": 1}), signature, padding) as one:
        wanted = one.run(samples)
    with open_runner(packed, Recipe(runtime={"name": "onnxruntime"}, runner=runner), signature, padding) as many:
        for own, expected in zip(many.run(samples), wanted, strict=True):
            np.testing.assert_allclose(own["logits"], expected["logits"], atol=2e-4)


@pytest.mark.parametrize("rules", [[], ["nothing"], "rows"])
def test_rules_that_are_not_known_are_an_error(tmp_path, rules):
    case = real_case(encoder(tmp_path / "m.onnx", layers=1), tmp_path)
    with pytest.raises(InvalidInput, match="attention, rows, embedding, transposes"):
        lever("rewrite").apply(Variant({"main": case.workload.model}), Step("rewrite", {"rules": rules}), case)


def test_outputs_that_nobody_reads_are_cut_off_with_what_they_need(tmp_path):
    path = encoder(tmp_path / "m.onnx", read="both")
    case = real_case(path, tmp_path)
    brought = Variant({"main": case.workload.model})
    made = lever("rewrite").apply(brought, Step("rewrite", {"drop": ["tokens"]}), case).parts["main"]
    assert [tensor.name for tensor in made.signature.outputs] == ["logits"]
    inputs = batch(3, 12)
    proto = onnx.load(str(made.path))
    np.testing.assert_allclose(answers(proto, inputs)[0], answers(onnx.load(str(path)), inputs)[0], atol=1e-5)
    up = next(node for node in proto.graph.node if "up1_w" in node.input)
    assert longest(proto, up.output[0], inputs) == (3, 1, 32), "with nobody to read them, the other rows are gone too"


@pytest.mark.parametrize(
    ("drop", "found"), [(["logits"], "judged by"), (["nothing"], "makes no sense"), (["logits", "tokens"], "not all")]
)
def test_outputs_that_must_stay_are_not_dropped(tmp_path, drop, found):
    case = real_case(encoder(tmp_path / "m.onnx", layers=1, read="both"), tmp_path)
    with pytest.raises(InvalidInput) as caught:
        lever("rewrite").apply(Variant({"main": case.workload.model}), Step("rewrite", {"drop": drop}), case)
    assert found in str(caught.value)


def test_outputs_that_nobody_reads_are_proposed_to_be_dropped():
    case = paper_case({"Conv": 3, "Relu": 3})
    assert list(Rewrite().propose(case)) == []
    case = replace(case, workload=replace(case.workload, unread=("features",)))
    (proposal,) = Rewrite().propose(case)
    assert proposal.recipe.steps == (Step("rewrite", {"drop": ["features"]}),)


BERT = {"MatMul": 12, "LayerNormalization": 3, "Softmax": 2, "IsNaN": 2, "Gather": 2}


def operators(last: str) -> tuple[Operator, ...]:
    def one(name: str, kind: str, flops: int, shape: tuple[int, ...]) -> Operator:
        return Operator(name, kind, flops, 100, 0, (name,), shape)

    return (
        one("a", "MatMul", 600, (1, 64, 16)),
        one("b", "Softmax", 20, (1, 2, 64, 64)),
        one("c", "MatMul", 400, (1, 64, 16)),
        one("d", last, 0, (1, 16)),
        one("e", "MatMul", 10, (1, 3)),
    )


def test_all_rules_are_proposed_at_once_and_then_what_is_left_of_them():
    case = paper_case(BERT, operators=operators("Gather"))
    (first,) = Rewrite().propose(case)
    assert first.recipe.steps == (Step("rewrite"),)
    assert first.gain.factor > 1.3
    assert "makes rows that nothing reads" in first.gain.source
    again = paper_case(BERT, recipe=first.recipe, operators=operators("Gather"))
    without = [proposal.recipe.steps[0].options["rules"] for proposal in Rewrite().propose(again)]
    assert without == [[rule for rule in RULES if rule != gone] for gone in reversed(RULES)]


def test_each_rule_alone_where_all_together_did_not_win():
    tried = Trial("t1", Recipe((Step("rewrite"),)), "ok", "")
    case = paper_case(BERT, operators=operators("Gather"), trials=(tried,))
    assert [p.recipe.steps[0].options["rules"] for p in Rewrite().propose(case)] == [["attention"], ["rows"]]


def test_nothing_is_unread_without_a_selection_after_attention():
    assert unread_share(paper_case(BERT, operators=operators("Gather"))) == pytest.approx(1.4 * 420 / 1030)
    assert unread_share(paper_case(BERT, operators=operators("Identity"))) == 0.0


@pytest.mark.parametrize(
    ("recipe", "found"),
    [
        (Recipe((Step("pack"),)), "before packing"),
        (Recipe((Step("fuse"),)), "before fusion"),
    ],
)
def test_rewriting_comes_before_what_looks_for_the_pieces(recipe, found):
    assert found in (Rewrite().refuse(paper_case(BERT, recipe=recipe)) or "")


def test_the_step_goes_before_quantisation():
    case = paper_case(BERT, recipe=Recipe((Step("int8"),)), operators=operators("Gather"))
    (proposal,) = Rewrite().propose(case)
    assert [step.lever for step in proposal.recipe.steps] == ["rewrite", "int8"]


def test_a_graph_that_the_rewrites_do_not_know_is_left_alone():
    assert "nothing that the rewrites know" in (Rewrite().refuse(paper_case({"Conv": 3, "Relu": 3})) or "")
