"""What levers propose where a runtime can use a GPU, and that they propose nothing for one that is not there."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lever_models import matmuls, paper_case

from hasten.levers import Case
from hasten.levers import runtime as runtime_lever
from hasten.levers.dynamic_int8 import DynamicInt8
from hasten.levers.execution import Execution
from hasten.levers.int8 import Int8
from hasten.levers.layout import Layout
from hasten.levers.precision import Precision
from hasten.levers.runtime import RuntimeChoice
from hasten.levers.weight_only import WeightOnly
from hasten.measurement import Trial
from hasten.recipe import Recipe
from hasten.runtimes import Availability

CNN = {"Conv": 10, "Relu": 9, "Gemm": 1}
ORT = Recipe(runtime={"name": "onnxruntime", "threads": 2})
CUDA = Recipe(runtime={"name": "onnxruntime", "device": "cuda", "precision": "fp32"})
HERE = {"cuda": Availability(True), "tensorrt": Availability(True)}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = {"onnxruntime": HERE, "torch": {"cuda": Availability(True)}}
    monkeypatch.setattr(runtime_lever, "_devices_of", lambda name: devices.get(name, {}))


def on_devices(case: Case) -> list[tuple[str, str]]:
    found = [proposal.recipe.runtime for proposal in RuntimeChoice().propose(case)]
    return [(str(each["device"]), str(each["precision"])) for each in found if "device" in each]


def test_each_device_is_proposed_at_each_precision_without_the_settings_of_the_cpu(gpu: None) -> None:
    case = paper_case(CNN, ORT)
    assert on_devices(case) == [
        *(("tensorrt", "fp16"), ("tensorrt", "bf16"), ("cuda", "tf32"), ("cuda", "fp32"), ("tensorrt", "fp32")),
    ]
    assert all("threads" not in p.recipe.runtime for p in RuntimeChoice().propose(case) if "device" in p.recipe.runtime)
    assert len({p.recipe.id for p in RuntimeChoice().propose(case)}) == len(list(RuntimeChoice().propose(case)))


def test_a_device_that_cannot_be_used_is_not_proposed(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = {"cuda": Availability(True), "tensorrt": Availability(False, "TensorRT's libraries are not installed")}
    monkeypatch.setattr(runtime_lever, "_devices_of", lambda name: lacking if name == "onnxruntime" else {})
    assert {device for device, _ in on_devices(paper_case(CNN, ORT))} == {"cuda"}
    monkeypatch.setattr(runtime_lever, "_devices_of", lambda name: {})
    assert on_devices(paper_case(CNN, ORT)) == []


def test_a_device_that_did_not_load_the_model_leaves_the_others_as_they_are(gpu: None) -> None:
    lost = Trial("1", CUDA, "failed", "onnxruntime cannot load model.onnx: no kernel")
    case = paper_case(CNN, Recipe(runtime={"name": "openvino"}), trials=(lost,))
    assert {device for device, _ in on_devices(case)} == {"tensorrt"}
    assert any(p.recipe.runtime["name"] == "onnxruntime" for p in RuntimeChoice().propose(case))


def test_a_pytorch_program_is_proposed_on_cuda(gpu: None) -> None:
    case = paper_case(CNN, Recipe(runtime={"name": "torch"}), runtimes=("torch",))
    model = replace(case.workload.model, format="pt2")
    case = replace(case, workload=replace(case.workload, model=model))
    assert on_devices(case) == [("cuda", "fp16"), ("cuda", "bf16"), ("cuda", "fp32")]


def test_levers_of_the_cpus_kernels_leave_a_gpu_alone(gpu: None) -> None:
    case = paper_case(CNN, CUDA)
    for lever in (Precision(), Int8(), DynamicInt8(), WeightOnly()):
        assert list(lever.propose(case)) == []
        assert lever.refuse(case)
    (proposal,) = Execution().propose(case)
    assert proposal.recipe.runtime["streams"] == 2
    assert "threads" not in proposal.recipe.runtime
    (proposal,) = Layout().propose(case)
    assert proposal.recipe.runtime["provider_options"] == {"CUDAExecutionProvider": {"prefer_nhwc": "1"}}


def test_batches_of_one_shape_are_captured(gpu: None) -> None:
    case = paper_case(CNN, CUDA, operators=matmuls(3, flops=1000))
    (proposal,) = RuntimeChoice().propose(case)
    assert proposal.recipe.runtime["cuda_graph"] is True
    assert proposal.gain.factor > 1.2
    assert "already" in (RuntimeChoice().refuse(replace(case, recipe=proposal.recipe)) or "")
    for other in (
        replace(case, lengths=(3, 5)),
        replace(case, recipe=CUDA.edit("runtime", streams=2)),
        paper_case({"If": 1, "Conv": 1}, CUDA),
        paper_case(CNN, Recipe(runtime={"name": "torch", "device": "cuda"})),
    ):
        assert list(RuntimeChoice().propose(other)) == []
        assert RuntimeChoice().refuse(other)
