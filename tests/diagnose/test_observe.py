import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from hasten import formats
from hasten.data import SampleSet
from hasten.device import Device
from hasten.diagnose import doctor as doctor_module
from hasten.diagnose import observe
from hasten.diagnose.doctor import doctor, kind_row, lever_row, runtime_row
from hasten.diagnose.profile import Profile, profile
from hasten.intake.kinds import Kind
from hasten.measurement import Figure
from hasten.recipe import Recipe
from hasten.variant import Variant
from hasten.workload import Workload

DEVICE = Device(
    "test",
    cpus=(0,),
    limits={"gemm_fp32_gflops": Figure(50.0, "GFLOP/s", "measured"), "read_gb_s": Figure(10.0, "GB/s", "measured")},
)


@pytest.fixture
def workload(tmp_path: Path) -> Workload:
    """Two layers and a Relu, a batch axis, a few samples."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    weights = [numpy_helper.from_array(rng.standard_normal((64, 64)).astype(np.float32), n) for n in ("w1", "w2")]
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"], "first"),
        helper.make_node("Relu", ["a"], ["b"], "relu"),
        helper.make_node("MatMul", ["b", "w2"], ["y"], "second"),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [value("x", TensorProto.FLOAT, ["n", 64])], [value("y", TensorProto.FLOAT, ["n", 64])], weights
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(proto, str(tmp_path / "net.onnx"))
    samples = SampleSet.write(
        tmp_path / "samples", [{"x": rng.standard_normal(64).astype(np.float32)} for _ in range(20)], None
    )
    return Workload(formats.load(tmp_path / "net.onnx"), samples, "cosine", "offline")


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_a_real_model_is_profiled_down_to_its_operators(workload, runtime, monkeypatch):
    recipe = Recipe(runtime={"name": runtime, "threads": 1}, runner={"batch": 4}, cache={"kind": "identity"})
    found = profile(Variant({"main": workload.model}), recipe, workload, DEVICE, samples_limit=8)
    assert found.batch == 4
    assert found.shapes == {"x": (4, 64)}
    assert found.coverage == pytest.approx(1, abs=0.05)
    assert found.kinds()["MatMul"] > 0
    products = [row for row in found.rows if row.kind == "MatMul"]
    assert sum(row.flops for row in products) >= 2 * 2 * 4 * 64 * 64
    assert all(row.gflops > 0 and row.intensity > 0 for row in products)
    assert found.wall_us.value >= found.session_us.value > 0
    assert found.best_us["fp32"].value > 0
    assert Profile.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_batches_are_watched_one_at_a_time():
    class Inner:
        name, accepts, precisions = "inner", frozenset({"onnx"}), ("fp32",)

        def load(self, model, settings):
            return self

        def run(self, batch):
            if batch["x"] is None:
                raise ValueError("no")
            return {"y": batch["x"]}

    watch = observe.Watch(Inner())
    session = watch.load(None, None)
    assert session.submit({"x": 1}).result() == {"y": 1}
    assert watch.inside_s > 0
    with pytest.raises(ValueError, match="no"):
        session.submit({"x": None}).result()


class Broken:
    name, value, dist = "broken", "nowhere:Nothing", None

    def load(self):
        raise ModuleNotFoundError("No module named 'nowhere'")


def test_a_broken_plugin_is_a_row_with_its_reason_and_stops_nobody():
    for row in (runtime_row(Broken()), lever_row(Broken())):
        assert not row.usable
        assert "nowhere:Nothing is broken" in row.reason


def test_a_kind_of_models_that_cannot_be_read_here_says_what_to_install():
    row = kind_row(Kind("Clay tablets", ("numpy", "no-such-package"), "clay"))
    assert (row.usable, row.reason) == (False, "not installed: no-such-package")
    assert row.command == "pip install 'hasten[clay]'"
    assert kind_row(Kind("Arrays", ("numpy",), "data")).usable


def test_the_doctor_lists_what_is_registered(monkeypatch):
    monkeypatch.setattr(doctor_module, "measured_device", lambda *args, **options: DEVICE)
    found = doctor()
    names = {row.name: row for row in found.runtimes}
    assert names["onnxruntime"].usable
    assert names["onnxruntime"].package == "hasten"
    assert found.energy.startswith(("measured", "estimated"))
    assert found.kinds[0].usable, "the core reads ONNX"
    assert json.loads(json.dumps(found.to_json()))["device"]["name"] == "test"


def test_the_doctor_says_what_a_gpu_lacks(monkeypatch):
    from hasten.cli.doctor import doctor_report
    from hasten.runtimes import Availability
    from hasten.runtimes.onnxruntime import OnnxRuntime

    devices = {"cuda": Availability(False, "built for the CPU", "pip install it"), "tensorrt": Availability(True)}
    monkeypatch.setattr(OnnxRuntime, "devices", lambda self: devices)
    with_gpu = replace(DEVICE, accelerators=("NVIDIA H200",))
    monkeypatch.setattr(doctor_module, "measured_device", lambda *args, **options: with_gpu)
    found = doctor()
    rows = {row.name: row for row in found.devices}
    assert rows["onnxruntime on tensorrt"].usable
    assert rows["onnxruntime on cuda"].command == "pip install it"
    console = Console(width=200, record=True, file=StringIO())
    console.print(*doctor_report(found))
    said = console.export_text()
    assert "NVIDIA H200" in said
    assert "built for the CPU" in said


def test_a_gpu_is_not_measured_by_the_limits_of_the_processor(workload, monkeypatch):
    from hasten.diagnose import profile as profile_module

    recipe = Recipe(runtime={"name": "onnxruntime", "threads": 1}, runner={"batch": 4})
    monkeypatch.setattr(profile_module, "kind_of", lambda recipe: "gpu")
    found = profile(Variant({"main": workload.model}), recipe, workload, DEVICE, samples_limit=8)
    assert found.kinds()["MatMul"] > 0
    assert found.best_us == {}
