"""ONNX Runtime behind the protocol of runtimes."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from onnx import helper
from small_models import linear, reshaped

from hasten.errors import Failed, InvalidInput
from hasten.model import Tensor
from hasten.runtimes import Settings
from hasten.runtimes.onnxruntime import OnnxRuntime, intra_op_threads
from onnx_files import save


def test_outputs_equal_the_arithmetic(tmp_path):
    model, weight = linear(tmp_path)
    session = OnnxRuntime().load(model, Settings())
    x = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)
    np.testing.assert_allclose(session.run({"x": x})["y"], np.maximum(x @ weight, 0), rtol=1e-5, atol=1e-6)
    session.close()


def test_streams_run_many_batches_together_and_each_future_has_its_own_outputs(tmp_path):
    model, weight = linear(tmp_path)
    session = OnnxRuntime().load(model, Settings(threads=1, streams=3))
    batches = [np.full((k % 5 + 1, 4), k, np.float32) for k in range(40)]
    futures = [session.submit({"x": x}) for x in batches]
    for x, future in zip(batches, futures, strict=True):
        np.testing.assert_allclose(future.result()["y"], np.maximum(x @ weight, 0), rtol=1e-5)
    session.close()


def test_text_goes_in_and_out(tmp_path):
    tensors = [Tensor("text", "string", ("n",))], [Tensor("same", "string", ("n",))]
    model = save(tmp_path / "text.onnx", [helper.make_node("Identity", ["text"], ["same"])], *tensors)
    session = OnnxRuntime().load(model, Settings())
    text = np.array(["a", "längere Wörter", ""], dtype=object)
    assert session.run({"text": text})["same"].tolist() == text.tolist()


def test_operators_are_named_as_in_the_model_and_map_to_its_tensors(tmp_path):
    model, _ = linear(tmp_path)
    session = OnnxRuntime().load(model, Settings(threads=1))
    found = {o.name: o for o in session.operators({"x": np.ones((2, 4), np.float32)}, repeats=3)}
    assert found["project"].kind == "MatMul"
    assert found["project"].sources == ("product",)
    assert found["project"].executed == "CPU float"
    assert all(operator.microseconds >= 0 for operator in found.values())


def test_operators_of_a_file_without_node_names_map_to_its_tensors(tmp_path):
    nodes = [helper.make_node("Sin", ["x"], ["a"]), helper.make_node("Cos", ["a"], ["b"]),
             helper.make_node("Sin", ["b"], ["y"])]  # fmt: skip
    model = save(tmp_path / "m.onnx", nodes, [Tensor("x", "float32", (8,))], [Tensor("y", "float32", (8,))])
    found = OnnxRuntime().load(model, Settings(threads=1)).operators({"x": np.ones(8, np.float32)}, repeats=2)
    assert sorted((o.kind, o.sources) for o in found) == [("Cos", ("b",)), ("Sin", ("a",)), ("Sin", ("y",))]


def test_profiling_leaves_no_files_behind(tmp_path, monkeypatch):
    model, _ = linear(tmp_path)
    elsewhere = tmp_path / "cwd"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    OnnxRuntime().load(model, Settings()).operators({"x": np.ones((2, 4), np.float32)}, repeats=1)
    assert not list(elsewhere.iterdir())


def test_a_batch_of_the_wrong_type_or_rank_or_name_is_invalid_input(tmp_path):
    session = OnnxRuntime().load(linear(tmp_path)[0], Settings())
    for batch in ({"x": np.ones((2, 4))}, {"x": np.ones(4, np.float32)}, {"z": np.ones((2, 4), np.float32)}, {}):
        with pytest.raises(InvalidInput) as caught:
            session.run(batch)
        assert "\n" not in caught.value.cause
    with pytest.raises(InvalidInput, match="misses x and has no input z"):
        session.run({"z": np.ones((2, 4), np.float32)})


def test_a_failure_inside_the_model_reaches_the_future_as_one_line(tmp_path):
    session = OnnxRuntime().load(reshaped(tmp_path), Settings(streams=2))
    future = session.submit({"x": np.ones((2, 3), np.float32), "shape": np.array([4, 2])})
    with pytest.raises(Failed) as caught:
        future.result()
    assert "reshape" in caught.value.cause.lower()
    assert "\n" not in caught.value.cause
    good = session.submit({"x": np.ones((2, 3), np.float32), "shape": np.array([3, 2])}).result()
    assert good["y"].shape == (3, 2)


def test_a_file_that_is_no_model_is_invalid_input(tmp_path):
    model, _ = linear(tmp_path)
    model.path.write_bytes(b"not a model")
    with pytest.raises(InvalidInput, match=r"cannot load linear_n\.onnx"):
        OnnxRuntime().load(model, Settings())


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        (Settings(precision="bf16"), "no precision"),
        (Settings(threads=0), "threads = 0"),
        (Settings(streams=True), "streams = True"),
        (Settings(options={"speed": 9}), "no option speed"),
        (Settings(options={"graph_optimization": "most"}), "graph_optimization"),
        (Settings(options={"execution_mode": "fast"}), "execution_mode"),
        (Settings(options={"session": 3}), "is a table"),
        (Settings(options={"providers": ["CUDAExecutionProvider", "NoSuchProvider"]}), "NoSuchProvider"),
        (Settings(shapes={"x": (2, 5)}), "has shape"),
        (Settings(shapes={"x": (2, 4, 1)}), "axes"),
    ],
)
def test_settings_that_make_no_sense_are_invalid_input(tmp_path, settings, word):
    with pytest.raises(InvalidInput, match=word):
        OnnxRuntime().load(linear(tmp_path)[0], settings)


def test_every_option_is_taken(tmp_path):
    model, weight = linear(tmp_path)
    options = {
        "execution_mode": "parallel",
        "inter_op_threads": 2,
        "graph_optimization": "basic",
        "spinning": False,
        "arena": False,
        "memory_pattern": False,
        "providers": ["CPUExecutionProvider"],
        "provider_options": {"CPUExecutionProvider": {"use_arena": 0}},
        "session": {"session.set_denormal_as_zero": 1},
    }
    session = OnnxRuntime().load(model, Settings("fp32", 1, 2, {"x": (2, 4)}, options))
    x = np.ones((2, 4), np.float32)
    np.testing.assert_allclose(session.run({"x": x})["y"], np.maximum(x @ weight, 0), rtol=1e-5)


def test_threads_are_counted_per_stream_with_the_caller_among_them():
    assert intra_op_threads(4, 1) == 4
    assert intra_op_threads(1, 8) == 1
    assert intra_op_threads(2, 2) == 3


def test_availability_imports_nothing_heavy():
    code = (
        "import sys; from hasten.runtimes import all_runtimes\n"
        "found = {name: r.availability() for name, r in all_runtimes().items()}\n"
        "assert found['onnxruntime'].usable and found['openvino'].version, found\n"
        "heavy = {'numpy', 'onnx', 'onnxruntime', 'openvino', 'torch'} & set(sys.modules); assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
