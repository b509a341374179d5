from types import SimpleNamespace

import numpy as np
import pytest

from hasten.device import Device
from hasten.diagnose import device, probe
from hasten.errors import HastenError
from hasten.isolate import Limits, run
from hasten.runtimes import Availability, OperatorTime


class Scope:
    def __init__(self) -> None:
        self.state: dict = {}

    def progress(self, fraction, text):
        pass


def answer(proto, x):
    import onnxruntime

    return onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})[0]


def test_the_generated_models_are_valid_and_compute_a_product():
    import onnx

    for make in (probe.matmul_model, probe.quantised_model):
        onnx.checker.check_model(make(16), full_check=True)
        assert answer(make(16), np.ones((16, 16), np.float32)).shape == (16, 16)
    row = answer(probe.chain_model(4), np.zeros((1, probe.ROW), np.float32))
    assert row.sum() == pytest.approx(1.0)


def test_a_runtime_is_measured_at_the_precisions_that_it_executes(monkeypatch):
    for size in ("SMALL", "MIDDLE", "LARGE"):
        monkeypatch.setattr(probe, size, 64)
    found = probe.gemm({"runtime": "onnxruntime", "threads": 1, "repeats": 2, "seconds": 0.0}, Scope())
    assert set(found["rates"]) == {"fp32", "int8"}
    assert all(rate > 0 for result in found["rates"].values() for rate in result["values"])
    assert min(found["dispatch_us"]) > 0


def test_a_runtime_that_computes_in_another_precision_than_asked_is_not_believed():
    class Session:
        def operators(self, batch, repeats):
            return [OperatorTime("m", "MatMul", 5.0, "gemm_f32"), OperatorTime("x", "Reorder", 1.0)]

    assert probe._heavy_seconds(Session(), {}, "fp32") == pytest.approx(5e-6)
    with pytest.raises(HastenError, match="asked for bf16, it computed in fp32"):
        probe._heavy_seconds(Session(), {}, "bf16")


def test_bandwidths_are_measured_in_a_worker():
    payload = {"threads": 1, "bytes": 1 << 20, "cache_bytes": 64 << 10, "repeats": 2}
    found = run("hasten.diagnose.probe:memory", payload, Limits(seconds=60))
    assert set(found) == {"read", "copy", "cache"}
    assert all(len(values) == 2 and min(values) > 0 for values in found.values())


def test_a_runtime_that_says_so_takes_no_part_in_the_limits(monkeypatch) -> None:
    asked: list[str] = []
    known = {"kernels": SimpleNamespace(), "compiler": SimpleNamespace(probed=False)}
    for each in known.values():
        each.accepts, each.availability = frozenset({"onnx"}), lambda: Availability(True, version="1")

    def probe(target: str, payload: dict[str, object], *_: object) -> dict[str, object]:
        asked.append(str(payload.get("runtime", "")))
        return {"rates": {}, "dispatch_us": [], "operator_us": []} if "runtime" in payload else {}

    monkeypatch.setattr(device, "all_runtimes", lambda: known)
    monkeypatch.setattr(device, "run", probe)
    device.measure(Device("test", "cpu", (0,), 1 << 30), quick=True)
    assert asked == ["kernels", ""]
