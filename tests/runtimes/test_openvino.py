"""OpenVINO behind the protocol of runtimes."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from small_models import linear, reshaped

from hasten.errors import Failed, InvalidInput
from hasten.model import Facts, Model, Tensor
from hasten.runtimes import Settings
from hasten.runtimes.openvino import OpenVino
from hasten.runtimes.openvino_graph import properties
from onnx_files import save


def capabilities():
    import openvino as ov

    return ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def test_fp32_is_really_fp32_also_where_the_machine_prefers_bf16(tmp_path):
    model, weight = linear(tmp_path, width=256, out=256)
    x = np.random.default_rng(1).normal(size=(64, 256)).astype(np.float32)
    exact = np.maximum(x.astype(np.float64) @ weight, 0)
    found = OpenVino().load(model, Settings(precision="fp32")).run({"x": x})["y"]
    np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-4)
    if "BF16" in capabilities():
        low = OpenVino().load(model, Settings(precision="bf16")).run({"x": x})["y"]
        assert np.abs(low - exact).max() > 10 * np.abs(found - exact).max()


def test_a_precision_that_the_processor_lacks_is_refused_not_replaced(tmp_path):
    missing = [name for name, known in (("fp16", "FP16"), ("bf16", "BF16")) if known not in capabilities()]
    if not missing:
        pytest.skip("this processor has every precision")
    with pytest.raises(InvalidInput, match=f"no {missing[0]}"):
        OpenVino().load(linear(tmp_path)[0], Settings(precision=missing[0]))


def test_many_batches_in_flight_keep_their_own_outputs(tmp_path):
    model, weight = linear(tmp_path)
    session = OpenVino().load(model, Settings("fp32", threads=1, streams=2))
    batches = [np.full((k % 5 + 1, 4), k, np.float32) for k in range(60)]
    futures = [session.submit({"x": x}) for x in batches]
    found = [future.result()["y"] for future in futures]
    for x, y in zip(batches, found, strict=True):
        np.testing.assert_allclose(y, np.maximum(x @ weight, 0), rtol=1e-4)
    session.close()


def test_outputs_outlive_the_next_run(tmp_path):
    session = OpenVino().load(linear(tmp_path)[0], Settings("fp32"))
    first = session.run({"x": np.ones((2, 4), np.float32)})["y"]
    kept = first.copy()
    session.run({"x": np.full((2, 4), 7, np.float32)})
    np.testing.assert_array_equal(first, kept)


def test_read_only_and_scattered_inputs_are_accepted(tmp_path):
    model, weight = linear(tmp_path)
    session = OpenVino().load(model, Settings("fp32"))
    x = np.random.default_rng(2).normal(size=(4, 6)).astype(np.float32).T
    assert not x.flags.c_contiguous
    np.testing.assert_allclose(session.run({"x": x})["y"], np.maximum(x @ weight, 0), rtol=1e-4, atol=1e-5)
    fixed = np.ascontiguousarray(x)
    fixed.flags.writeable = False
    np.testing.assert_allclose(
        session.submit({"x": fixed}).result()["y"], np.maximum(x @ weight, 0), rtol=1e-4, atol=1e-5
    )


def test_static_shapes_are_compiled_in(tmp_path):
    model, weight = linear(tmp_path)
    session = OpenVino().load(model, Settings("fp32", shapes={"x": (3, 4)}))
    x = np.ones((3, 4), np.float32)
    np.testing.assert_allclose(session.run({"x": x})["y"], np.maximum(x @ weight, 0), rtol=1e-4)
    with pytest.raises(Failed):
        session.run({"x": np.ones((2, 4), np.float32)})


def test_operators_name_what_was_fused_into_them(tmp_path):
    model, _ = linear(tmp_path)
    session = OpenVino().load(model, Settings("fp32", threads=1, streams=2))
    operators = session.operators({"x": np.ones((64, 4), np.float32)}, repeats=3)
    fused = next(operator for operator in operators if "project" in operator.sources)
    assert set(fused.sources) == {"project", "y"}
    assert fused.kind == "FullyConnected"
    assert fused.executed.endswith("f32")
    assert fused.microseconds > 0


def test_an_openvino_file_runs_without_onnx(tmp_path):
    import openvino as ov

    model, weight = linear(tmp_path)
    ov.save_model(ov.Core().read_model(model.path), tmp_path / "linear.xml", compress_to_fp16=False)
    converted = Model(tmp_path / "linear.xml", "openvino", "0" * 64, model.signature, Facts(0, 0))
    found = OpenVino().load(converted, Settings("fp32")).run({"x": np.ones((2, 4), np.float32)})
    np.testing.assert_allclose(found["y"], np.maximum(np.ones((2, 4)) @ weight, 0), rtol=1e-4)


def test_an_input_that_nothing_reads_may_be_given(tmp_path):
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    inputs = [Tensor("x", "float32", ("n", 2)), Tensor("unused", "int64", ("n",))]
    model = save(tmp_path / "unused.onnx", nodes, inputs, [Tensor("y", "float32", ("n", 2))])
    batch = {"x": np.ones((2, 2), np.float32), "unused": np.zeros(2, np.int64)}
    assert OpenVino().load(model, Settings()).run(batch)["y"].sum() == 4


def test_a_batch_of_the_wrong_type_or_name_is_invalid_input(tmp_path):
    session = OpenVino().load(linear(tmp_path)[0], Settings())
    with pytest.raises(InvalidInput, match="float64"):
        session.run({"x": np.ones((2, 4))})
    with pytest.raises(InvalidInput, match="no input z"):
        session.run({"z": np.ones((2, 4), np.float32)})
    with pytest.raises(InvalidInput, match="misses x"):
        session.submit({}).result()


def test_a_failure_inside_the_model_reaches_the_future_as_one_line(tmp_path):
    session = OpenVino().load(reshaped(tmp_path), Settings(streams=2))
    future = session.submit({"x": np.ones((2, 3), np.float32), "shape": np.array([4, 2])})
    with pytest.raises(Failed) as caught:
        future.result(timeout=60)
    assert "Reshape" in caught.value.cause
    assert "\n" not in caught.value.cause
    assert "Exception from" not in caught.value.cause
    good = session.submit({"x": np.ones((2, 3), np.float32), "shape": np.array([3, 2])}).result(timeout=60)
    assert good["y"].shape == (3, 2)


def test_a_file_that_is_no_model_fails_in_one_line(tmp_path):
    model, _ = linear(tmp_path)
    model.path.write_bytes(b"not a model")
    with pytest.raises(Failed, match=r"cannot load linear_n\.onnx") as caught:
        OpenVino().load(model, Settings())
    assert "\n" not in caught.value.cause


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        (Settings(precision="int3"), "no precision"),
        (Settings(threads=1.5), "threads"),
        (Settings(options={"speed": 9}), "no option speed"),
        (Settings(options={"hint": "luck"}), "hint"),
        (Settings(options={"properties": []}), "is a table"),
        (Settings(options={"properties": {"NO_SUCH_KEY": 1}}), "NO_SUCH_KEY"),
    ],
)
def test_settings_that_make_no_sense_are_invalid_input(tmp_path, settings, word):
    with pytest.raises(InvalidInput, match=word):
        OpenVino().load(linear(tmp_path)[0], settings)


def test_settings_become_openvinos_own_properties():
    settings = Settings("bf16", 2, 3, options={"pinning": False, "properties": {"LOG_LEVEL": "LOG_NONE"}})
    assert properties(settings) == {
        "INFERENCE_PRECISION_HINT": "bf16",
        "NUM_STREAMS": 3,
        "INFERENCE_NUM_THREADS": 6,
        "ENABLE_CPU_PINNING": False,
        "LOG_LEVEL": "LOG_NONE",
    }
    assert properties(Settings()) == {}
    assert properties(Settings(threads=1))["NUM_STREAMS"] == 1


def test_a_compiled_model_is_kept_in_the_cache_folder(tmp_path):
    model, _ = linear(tmp_path)
    folder = tmp_path / "blobs"
    OpenVino().load(model, Settings(options={"cache": str(folder)}))
    assert list(folder.glob("*.blob"))


def test_weights_may_be_read_instead_of_mapped(tmp_path):
    session = OpenVino().load(linear(tmp_path)[0], Settings(options={"mmap": False, "denormals": True}))
    assert session.run({"x": np.ones((1, 4), np.float32)})["y"].shape == (1, 3)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_failed_batch_spoils_no_other(tmp_path, threads):
    model = save(
        tmp_path / "product.onnx",
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [Tensor("x", "float32", ("n", "m")), Tensor("w", "float32", ("k", "l"))],
        [Tensor("y", "float32", ("n", "l"))],
    )
    good = {"x": np.ones((1, 4), np.float32), "w": np.ones((4, 2), np.float32)}
    bad = good | {"w": np.ones((3, 2), np.float32)}
    session = OpenVino().load(model, Settings(streams=1, threads=threads))
    for run in (session.run, lambda batch: session.submit(batch).result()):
        for _ in range(5):
            with pytest.raises(Failed):
                run(bad)
            under_way = [session.submit(good) for _ in range(3)]
            assert run(good)["y"].tolist() == [[4, 4]]
            assert [each.result()["y"].tolist() for each in under_way] == [[[4, 4]]] * 3
    session.close()
