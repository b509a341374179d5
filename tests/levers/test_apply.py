"""What levers build: real files that keep the model's signature and nearly its answers, or a reason why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from lever_models import case_of, cnn, mlp, outputs
from onnx import helper

from hasten.errors import Failed, InvalidInput
from hasten.levers.base import Case, Lever
from hasten.levers.calibration import calibration_batches
from hasten.levers.dynamic_int8 import DynamicInt8
from hasten.levers.fuse import Fuse
from hasten.levers.int8 import Int8
from hasten.levers.keep import exactly, matching, patterns_for
from hasten.levers.modelfile import weight_bytes
from hasten.levers.precision import Precision
from hasten.levers.weight_only import WeightOnly
from hasten.model import Model
from hasten.recipe import Recipe, Step
from hasten.variant import Variant


def dynamic(shape: Any) -> list[bool]:
    return [not isinstance(size, int) for size in shape]


def built(lever: Lever, case: Case, **options: Any) -> Model:
    before = case.workload.model
    after = lever.apply(Variant({"main": before}), Step(lever.name, options), case).main
    for kind in ("inputs", "outputs"):
        old, new = getattr(before.signature, kind), getattr(after.signature, kind)
        assert [(t.name, t.dtype) for t in old] == [(t.name, t.dtype) for t in new]
        assert [[isinstance(d, int) for d in t.shape] for t in old] == [
            [isinstance(d, int) for d in t.shape] for t in new
        ]
    assert after.path.is_relative_to(case.workdir)
    assert after.sha256 != before.sha256
    return after


def relative_error(case: Case, after: Model, runtime: str) -> float:
    batch = dict(calibration_batches(case, case.workload.model.signature, 1)[0])
    truth = outputs(case.workload.model, "onnxruntime", batch)
    return float(np.abs(outputs(after, runtime, batch) - truth).max() / np.abs(truth).max())


def on(runtime: str) -> Recipe:
    return Recipe(runtime={"name": runtime})


@pytest.mark.parametrize("runtime", ["openvino", "onnxruntime"])
def test_static_int8_of_a_cnn_is_small_and_close(tmp_path: Path, runtime: str) -> None:
    case = case_of(cnn(tmp_path / "m.onnx"), tmp_path, on(runtime))
    after = built(Int8(), case, scheme="mixed")
    assert after.format == {"openvino": "openvino", "onnxruntime": "onnx"}[runtime]
    assert relative_error(case, after, runtime) < 0.1


@pytest.mark.parametrize("runtime", ["openvino", "onnxruntime"])
def test_old_opsets_constant_nodes_and_unnamed_nodes_are_quantised_too(tmp_path: Path, runtime: str) -> None:
    case = case_of(cnn(tmp_path / "m.onnx", opset=11, constants=True), tmp_path, on(runtime))
    assert relative_error(case, built(Int8(), case), runtime) < 0.1


@pytest.mark.parametrize("options", [{"range": "percentile"}, {"range": "entropy", "scheme": "performance"}])
def test_calibration_methods_of_onnx_runtime(tmp_path: Path, options: dict[str, Any]) -> None:
    case = case_of(cnn(tmp_path / "m.onnx"), tmp_path, on("onnxruntime"))
    assert relative_error(case, built(Int8(), case, **options), "onnxruntime") < 0.4


@pytest.mark.parametrize(
    "options",
    [{"range": "quantile", "bias_correction": "full"}, {"transformer": True, "smooth": 0.5}, {"scheme": "performance"}],
)
def test_options_of_nncf(tmp_path: Path, options: dict[str, Any]) -> None:
    case = case_of(mlp(tmp_path / "m.onnx", 3), tmp_path, on("openvino"))
    assert relative_error(case, built(Int8(), case, **options), "openvino") < 0.1


def test_what_a_recipe_keeps_stays_unquantised(tmp_path: Path) -> None:
    case = case_of(cnn(tmp_path / "m.onnx"), tmp_path, on("onnxruntime"))

    def scales(**options: Any) -> int:
        graph = onnx.load(str(built(Int8(), case, **options).path)).graph
        return sum(node.op_type == "DequantizeLinear" for node in graph.node)

    assert scales(keep=["block1.*"]) < scales()
    case = case_of(cnn(tmp_path / "m.onnx"), tmp_path / "ov", on("openvino"))
    whole = built(Int8(), case)
    kept = built(Int8(), case, keep=["block2.conv"])
    assert kept.path.with_suffix(".bin").stat().st_size > whole.path.with_suffix(".bin").stat().st_size


@pytest.mark.parametrize("runtime", ["openvino", "onnxruntime"])
def test_a_pattern_that_keeps_nothing_is_an_error(tmp_path: Path, runtime: str) -> None:
    case = case_of(cnn(tmp_path / "m.onnx"), tmp_path, on(runtime))
    with pytest.raises(InvalidInput, match="blokc1"):
        built(Int8(), case, keep=["blokc1.*"])


@pytest.mark.parametrize("runtime", ["openvino", "onnxruntime"])
def test_quantisation_that_changed_nothing_is_a_failure(tmp_path: Path, runtime: str) -> None:
    case = case_of(mlp(tmp_path / "m.onnx", 1), tmp_path, on(runtime))
    keep = ["y"] if runtime == "openvino" else ["layer0"]
    with pytest.raises(Failed, match="changed nothing"):
        built(Int8(), case, keep=keep)


def test_an_unknown_option_is_named(tmp_path: Path) -> None:
    case = case_of(mlp(tmp_path / "m.onnx", 1), tmp_path, on("onnxruntime"))
    with pytest.raises(InvalidInput, match="smoth"):
        built(Int8(), case, smoth=1)
    with pytest.raises(InvalidInput, match="3-bit"):
        built(WeightOnly(), case, bits=3)


def test_dynamic_int8_needs_no_samples(tmp_path: Path) -> None:
    case = case_of(mlp(tmp_path / "m.onnx", 3), tmp_path, on("onnxruntime"))
    after = built(DynamicInt8(), case)
    assert after.facts.kinds.get("MatMulInteger")
    assert relative_error(case, after, "onnxruntime") < 0.1


@pytest.mark.parametrize(
    ("runtime", "bits"), [("openvino", 8), ("openvino", 4), ("onnxruntime", 8), ("onnxruntime", 4)]
)
def test_weight_only_shrinks_the_file(tmp_path: Path, runtime: str, bits: int) -> None:
    case = case_of(mlp(tmp_path / "m.onnx", 3, width=128), tmp_path, on(runtime))
    after = built(WeightOnly(), case, bits=bits)
    assert after.facts.size_bytes < 0.5 * case.workload.model.facts.size_bytes
    assert relative_error(case, after, runtime) < 0.3


def test_fusion_folds_batchnorm_and_keeps_the_answers(tmp_path: Path) -> None:
    case = case_of(cnn(tmp_path / "m.onnx"), tmp_path)
    after = built(Fuse(), case)
    assert "BatchNormalization" not in after.facts.kinds
    assert "Identity" not in after.facts.kinds
    assert relative_error(case, after, "onnxruntime") < 1e-4


def test_fusion_of_a_clean_graph_changes_nothing_and_says_so(tmp_path: Path) -> None:
    case = case_of(mlp(tmp_path / "m.onnx", 2), tmp_path)
    with pytest.raises(Failed, match="changed nothing"):
        built(Fuse(), case)
    with pytest.raises(Failed, match="no transformer fusion"):
        built(Fuse(), case, transformer=True)


def layer_norm_in_pieces(path: Path) -> Path:
    """A product, a skip and a LayerNorm as exporters before opset 17 write it, and a product."""
    mlp(path, 2)
    model = onnx.load(str(path))
    graph = model.graph
    weights = list(graph.initializer)
    del graph.node[:]
    make = helper.make_node
    graph.node.extend(
        [
            make("MatMul", ["x", "w0"], ["m"], name="up"),
            make("Add", ["m", "x"], ["a"], name="skip"),
            make("ReduceMean", ["a"], ["mean"], axes=[-1]),
            make("Sub", ["a", "mean"], ["d"]),
            make("Pow", ["d", "two"], ["sq"]),
            make("ReduceMean", ["sq"], ["var"], axes=[-1]),
            make("Add", ["var", "eps"], ["ve"]),
            make("Sqrt", ["ve"], ["sd"]),
            make("Div", ["d", "sd"], ["n"]),
            make("Mul", ["n", "gamma"], ["g"]),
            make("Add", ["g", "beta"], ["ln"]),
            make("MatMul", ["ln", "w1"], ["y"], name="head"),
        ]
    )
    constants = {"two": np.float32(2), "eps": np.float32(1e-5), "gamma": np.ones(32), "beta": np.zeros(32)}
    graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(v, np.float32), k) for k, v in constants.items())
    assert weights
    onnx.save(model, str(path))
    return path


def test_transformer_fusions_apply_and_dynamic_int8_follows_them(tmp_path: Path) -> None:
    case = case_of(layer_norm_in_pieces(tmp_path / "m.onnx"), tmp_path, on("onnxruntime"))
    fused = Fuse().apply(Variant({"main": case.workload.model}), Step("fuse", {"transformer": True}), case)
    assert {"SkipLayerNormalization", "LayerNormalization"} & set(fused.main.facts.kinds)
    assert relative_error(case, fused.main, "onnxruntime") < 1e-4
    quantised = DynamicInt8().apply(fused, Step("dynamic_int8"), case)
    assert relative_error(case, quantised.main, "onnxruntime") < 0.1


def test_a_settings_lever_is_no_step(tmp_path: Path) -> None:
    case = case_of(mlp(tmp_path / "m.onnx", 1), tmp_path)
    with pytest.raises(InvalidInput, match=r"\[\[step\]\]"):
        Precision().apply(Variant({"main": case.workload.model}), Step("precision"), case)


def test_nncf_is_silent_and_sends_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    case = case_of(mlp(tmp_path / "m.onnx", 2), tmp_path, on("openvino"))
    built(Int8(), case)
    captured = capfd.readouterr()
    assert captured.out == ""
    from unittest.mock import MagicMock

    from nncf.telemetry import telemetry

    assert isinstance(telemetry, MagicMock)


def test_patterns_mean_names_and_names_become_patterns() -> None:
    names = ["a/b[0]/WithoutBiases", "a/b[1]", "c"]
    assert matching(names, [exactly("a/b[0]")]) == ["a/b[0]/WithoutBiases"]
    assert patterns_for(["a/b[0]", "a/b[1]"], ["c"], "a/") == ["a/*"]
    assert patterns_for(["a/b[1]"], ["a/b[0]"], "a/") == ["a/b[[]1]"]


def test_weights_over_2_gb_are_counted_without_being_there() -> None:
    """Protobuf raises for the size of such a message, and every lever that saves the graph would fail."""
    table = onnx.TensorProto(name="table", data_type=onnx.TensorProto.FLOAT16, dims=(1 << 20, 2048))
    graph = helper.make_graph([], "large", [], [], [table])
    assert weight_bytes(helper.make_model(graph)) == 1 << 32
