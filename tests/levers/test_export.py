"""PyTorch programs become ONNX and OpenVINO graphs that give the same outputs."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from lever_models import cpu  # noqa: E402

from hasten import data  # noqa: E402
from hasten.errors import Failed, InvalidInput  # noqa: E402
from hasten.goal import Goal  # noqa: E402
from hasten.intake.factory import load as from_factory  # noqa: E402
from hasten.levers import Case, lever  # noqa: E402
from hasten.levers.export import check  # noqa: E402
from hasten.recipe import Recipe, Step  # noqa: E402
from hasten.runner import open_runner  # noqa: E402
from hasten.variant import Variant  # noqa: E402
from hasten.workload import Workload  # noqa: E402

MODELS = Path(__file__).parent.parent / "intake"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(MODELS)
    monkeypatch.syspath_prepend(str(MODELS))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def case_of(name: str, samples: str, folder: Path) -> Case:
    model = from_factory(f"torch_models:{name}", samples, folder / "models")
    handle = data.ingest(samples, model, folder / "samples")
    workload = Workload(model, handle, "top1-agreement", "offline", model.signature.outputs[0].name)
    recipe = Recipe(runtime={"name": "torch"}, runner={"batch": 8})
    runtimes = ("onnxruntime", "openvino", "torch")
    return Case(
        workload, Goal.parse("throughput", "1pt"), cpu(), recipe, folder / "work", workload.split(), runtimes=runtimes
    )


@pytest.mark.parametrize("target", ["onnx", "openvino"])
@pytest.mark.parametrize(
    ("name", "samples"),
    [("cnn", "torch_models:images"), ("encoder", "torch_models:samples"), ("branches", "torch_models:rows")],
)
def test_the_exported_graph_gives_the_programs_outputs(tmp_path, name, samples, target):
    case = case_of(name, samples, tmp_path)
    brought = Variant({"main": case.workload.model})
    if name == "branches":  # a trace follows one branch only, which the check finds
        with pytest.raises(Failed):
            lever("export").apply(brought, Step("export", {"to": target}), case)
        return
    exported = lever("export").apply(brought, Step("export", {"to": target}), case)
    assert exported.main.format == target
    signature = case.workload.model.signature
    rows = [data.SampleSet.open(case.workload.samples.path)[i] for i in range(4)]
    with open_runner(brought, Recipe(runtime={"name": "torch"}), signature, None) as runner:
        wanted = runner.run(rows)
    runtime = "openvino" if target == "openvino" else "onnxruntime"
    with open_runner(exported, Recipe(runtime={"name": runtime, "precision": "fp32"}), signature, None) as runner:
        found = runner.run(rows)
    for own, expected in zip(found, wanted, strict=True):
        assert set(own) == set(expected)
        for key, value in expected.items():
            np.testing.assert_allclose(own[key], value, atol=1e-4)


def test_an_export_tells_nothing_of_the_machine_that_made_it(tmp_path):
    case = case_of("cnn", "torch_models:images", tmp_path)
    exported = lever("export").apply(Variant({"main": case.workload.model}), Step("export", {"to": "onnx"}), case)
    content = exported.main.path.read_bytes()
    assert str(MODELS).encode() not in content
    assert b"torch_models.py" not in content


def test_a_graph_that_computes_something_else_is_refused(tmp_path):
    case = case_of("cnn", "torch_models:images", tmp_path)
    exported = lever("export").apply(Variant({"main": case.workload.model}), Step("export", {"to": "onnx"}), case)
    other = from_factory("torch_models:bare_cnn", "torch_models:images", tmp_path / "other")
    import onnx
    from onnx import numpy_helper

    proto = onnx.load(str(exported.main.path))
    for tensor in proto.graph.initializer:
        if len(tensor.dims) == 2:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) + 1, tensor.name))
    onnx.save(proto, str(exported.main.path))
    with pytest.raises(Failed, match="outputs differ"):
        check(other, exported.main, case)


def test_both_ways_are_proposed_for_every_runtime_that_is_there(tmp_path):
    case = case_of("cnn", "torch_models:images", tmp_path)
    found = {(p.recipe.steps[0].options["to"], p.recipe.runtime["name"]) for p in lever("export").propose(case)}
    assert found == {("onnx", "onnxruntime"), ("onnx", "openvino"), ("openvino", "openvino")}
    only = replace(case, runtimes=("onnxruntime", "torch"))
    assert {p.recipe.runtime["name"] for p in lever("export").propose(only)} == {"onnxruntime"}
    again = replace(case, recipe=case.recipe.with_step(Step("export", {"to": "onnx"})))
    assert list(lever("export").propose(again)) == []


def test_other_levers_follow_an_export(tmp_path):
    case = case_of("cnn", "torch_models:images", tmp_path)
    onnx = next(p.recipe for p in lever("export").propose(case) if p.recipe.runtime["name"] == "onnxruntime")
    assert any(True for _ in lever("int8").propose(replace(case, recipe=onnx)))
    assert any(True for _ in lever("fuse").propose(replace(case, recipe=onnx)))
    assert list(lever("int8").propose(case)) == []  # PyTorch itself has no INT8 here


@pytest.mark.parametrize("options", [{"to": "tflite"}, {"from": "onnx"}])
def test_options_that_do_not_exist_are_refused(tmp_path, options):
    case = case_of("cnn", "torch_models:images", tmp_path)
    with pytest.raises(InvalidInput):
        lever("export").apply(Variant({"main": case.workload.model}), Step("export", options), case)


def test_compiling_is_proposed_where_there_is_time_and_a_compiler(tmp_path, monkeypatch):
    case = case_of("cnn", "torch_models:images", tmp_path)
    patient = replace(case, goal=replace(case.goal, budget_s=900.0))
    monkeypatch.setattr("hasten.runtimes.torch.compiles", lambda: True)
    (first,) = lever("compile").propose(patient)
    assert first.recipe.runtime["compile"] is True
    (tuned,) = lever("compile").propose(replace(patient, recipe=first.recipe))
    assert tuned.recipe.runtime["max_autotune"] is True
    assert list(lever("compile").propose(replace(patient, goal=replace(case.goal, budget_s=60.0)))) == []
    monkeypatch.setattr("hasten.runtimes.torch.compiles", lambda: False)
    assert list(lever("compile").propose(patient)) == []
    assert "torch" in sys.modules
