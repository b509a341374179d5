"""Memory on the GPU is what its use grew by, and nothing is claimed where it cannot be asked."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from hasten.measure import device_memory
from hasten.measure.energy import kind_of
from hasten.recipe import Recipe


def fake_nvml(used: list[int]) -> SimpleNamespace:
    return SimpleNamespace(
        NVMLError=RuntimeError,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: len(used),
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetMemoryInfo=lambda index: SimpleNamespace(used=used[index]),
    )


def test_the_memory_of_a_variant_is_what_the_use_grew_by(monkeypatch: pytest.MonkeyPatch) -> None:
    used = [100, 20]
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(used))
    monkeypatch.setattr(device_memory, "gpus", lambda: ("a GPU",))
    before = device_memory.used_bytes()
    assert before == 120
    assert device_memory.grown(before) is None
    used[1] = 70
    assert device_memory.grown(before) == 50


def test_nothing_is_claimed_without_a_gpu_or_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_memory, "gpus", lambda: ())
    assert device_memory.used_bytes() is None
    monkeypatch.setattr(device_memory, "gpus", lambda: ("a GPU",))
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert device_memory.used_bytes() is None
    broken = fake_nvml([1])

    def fail() -> None:
        raise RuntimeError("Driver Not Loaded")

    broken.nvmlInit = fail
    assert device_memory.used_bytes(broken) is None
    assert device_memory.grown(None) is None


def test_a_recipe_on_the_gpu_is_metered_there() -> None:
    assert kind_of(Recipe(runtime={"name": "onnxruntime", "device": "tensorrt"})) == "gpu"
    assert kind_of(Recipe(runtime={"name": "torch", "device": "cuda:1"})) == "gpu"
    assert kind_of(Recipe(runtime={"name": "openvino"})) == "cpu"
