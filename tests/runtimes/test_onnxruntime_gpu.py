"""ONNX Runtime on a GPU, without one: what it is asked for, and what its failures become."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import onnxruntime as ort
import pytest
from small_models import linear

from hasten.errors import Failed, InvalidInput
from hasten.runtimes import Settings, devices_of, nvidia
from hasten.runtimes.onnxruntime import OnnxRuntime
from hasten.runtimes.onnxruntime_device import CUDA, TENSORRT, Replay, provider_options, why_not_started
from hasten.runtimes.torch import Torch

CPU = "CPUExecutionProvider"
BATCH = {"x": np.ones((2, 4), np.float32)}
real_session = ort.InferenceSession


class FakeSession:
    """A session that says it runs where it was asked to, and computes on the CPU."""

    opened: ClassVar[list[tuple[list[Any], dict[str, Any]]]] = []
    starts = (TENSORRT, CUDA, CPU)
    fails: Exception | None = None

    def __init__(self, path: str, options: Any, providers: list[Any], **more: Any) -> None:
        FakeSession.opened.append((providers, more))
        names = [entry[0] if isinstance(entry, tuple) else entry for entry in providers]
        self._providers = [name for name in names if name in self.starts]
        self._inner = real_session(path, options, providers=[CPU])

    def get_providers(self) -> list[str]:
        return self._providers

    def run(self, *arguments: Any) -> Any:
        if FakeSession.fails is not None:
            raise FakeSession.fails
        return self._inner.run(*arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[FakeSession]:
    """ONNX Runtime as its GPU package shows itself."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(ort, "get_available_providers", lambda: [TENSORRT, CUDA, CPU])
    monkeypatch.setattr(ort, "InferenceSession", FakeSession)
    monkeypatch.setattr(ort, "preload_dlls", lambda: None)
    monkeypatch.setattr(FakeSession, "opened", [])
    monkeypatch.setattr(FakeSession, "fails", None)
    monkeypatch.setattr(FakeSession, "starts", (TENSORRT, CUDA, CPU))
    return FakeSession


def load(tmp_path: Path, precision: str | None = None, streams: int | None = None, **options: Any) -> Any:
    return OnnxRuntime().load(linear(tmp_path)[0], Settings(precision, streams=streams, options=options))


@pytest.mark.parametrize(("precision", "tf32"), [("fp32", "0"), ("tf32", "1")])
def test_cuda_multiplies_in_the_precision_that_was_asked_for(gpu, tmp_path, precision, tf32):
    load(tmp_path, precision, device="cuda:1")
    ((providers, more),) = gpu.opened
    assert providers == [(CUDA, {"device_id": "1", "use_tf32": tf32}), CPU]
    assert not more["enable_fallback"]  # else a failing provider would be replaced by the CPU's


@pytest.mark.parametrize("precision", ["bf16", "fp16", "int8"])
def test_tensorrt_comes_before_cuda_and_keeps_its_engines(gpu, tmp_path, precision):
    load(tmp_path, precision, device="tensorrt")
    (((first, own), (second, _), last), _) = gpu.opened[0]
    assert (first, second, last) == (TENSORRT, CUDA, CPU)
    assert own[f"trt_{precision}_enable"] == own["trt_engine_cache_enable"] == "1"
    assert own["trt_engine_cache_path"] == str(tmp_path / "hasten" / "tensorrt" / precision)
    assert Path(own["trt_engine_cache_path"]).is_dir()


def test_the_users_own_options_of_a_provider_come_last(gpu, tmp_path):
    load(tmp_path, device="cuda", provider_options={CUDA: {"gpu_mem_limit": 1 << 30, "device_id": 2}})
    assert gpu.opened[0][0][0] == (CUDA, {"device_id": "2", "gpu_mem_limit": str(1 << 30)})


def test_graphs_are_captured_by_the_provider_that_runs_the_model(tmp_path):
    assert provider_options(("cuda", 0), None, True)[CUDA]["enable_cuda_graph"] == "1"
    both = provider_options(("tensorrt", 0), None, True, tmp_path)
    assert both[TENSORRT]["trt_cuda_graph_enable"] == "1"
    assert "enable_cuda_graph" not in both[CUDA]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (Settings(options={"device": "tpu"}), "no device 'tpu'"),
        (Settings(options={"device": "cuda:x"}), "no device"),
        (Settings("fp16", options={"device": "cuda"}), "onnxruntime on cuda has no precision"),
        (Settings("tf32"), "no precision"),
        (Settings(options={"device": "cuda", "providers": [CUDA]}), "twice"),
        (Settings(options={"cuda_graph": True}), "takes a GPU"),
        (Settings(streams=2, options={"device": "cuda", "cuda_graph": True}), "one stream"),
    ],
)
def test_settings_that_make_no_sense_on_a_gpu_are_refused(gpu, tmp_path, settings, says):
    with pytest.raises(InvalidInput, match=says):
        OnnxRuntime().load(linear(tmp_path)[0], settings)
    assert gpu.opened == []


def test_the_cpus_package_names_the_one_that_has_the_gpu(tmp_path):
    if CUDA in ort.get_available_providers():
        pytest.skip("the GPU package is installed")
    with pytest.raises(InvalidInput, match="no CUDAExecutionProvider") as caught:
        load(tmp_path, device="cuda")
    assert "onnxruntime-gpu" in caught.value.command


def test_a_provider_that_did_not_start_is_an_error_and_not_the_cpu(gpu, tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "starts", (CPU,))
    folder = tmp_path / "capi"
    folder.mkdir()
    (folder / "libonnxruntime_providers_cuda.so").write_bytes(b"not a library")
    monkeypatch.setattr(ort, "__file__", str(tmp_path / "__init__.py"))
    with pytest.raises(InvalidInput, match=r"could not start: .*providers_cuda"):
        load(tmp_path, device="cuda")


@pytest.mark.parametrize(
    ("missing", "says", "command"),
    [
        ("libcuda.so.1", "no NVIDIA driver", ""),
        ("libcudart.so.13", "libcudart", "onnxruntime-gpu"),
        ("libnvinfer.so.10", "libnvinfer", "tensorrt"),
    ],
)
def test_what_is_missing_decides_what_would_add_it(tmp_path, monkeypatch, missing, says, command):
    def load_library(path: str) -> None:
        raise OSError(f"{missing}: cannot open shared object file: No such file or directory")

    (tmp_path / "capi").mkdir()
    (tmp_path / "capi" / "libonnxruntime_providers_tensorrt.so").touch()
    monkeypatch.setattr(ort, "__file__", str(tmp_path / "__init__.py"))
    monkeypatch.setattr(ctypes, "CDLL", load_library)
    reason, fix, found = why_not_started(ort, [TENSORRT])
    assert says in reason
    assert fix
    assert command in found
    assert bool(command) == bool(found)


def test_a_session_that_a_missing_library_stops_says_which(gpu, tmp_path, monkeypatch):
    def stopped(self: Any, *arguments: Any, **more: Any) -> None:
        raise RuntimeError("Please install TensorRT libraries")

    monkeypatch.setattr(gpu, "__init__", stopped)
    monkeypatch.setattr(ort, "__file__", str(tmp_path / "__init__.py"))
    with pytest.raises(Failed, match="Please install"):
        load(tmp_path, device="tensorrt")
    folder = tmp_path / "capi"
    folder.mkdir()
    (folder / "libonnxruntime_providers_tensorrt.so").write_bytes(b"not a library")
    with pytest.raises(InvalidInput, match=r"Tensorrt.* could not start: .*providers_tensorrt"):
        load(tmp_path, device="tensorrt")


@pytest.mark.parametrize(
    "message",
    [
        "CUDA failure 2: out of memory ; GPU=0",
        "Failed to allocate memory for requested buffer of size 9000",
    ],
)
def test_a_full_device_is_a_failure_that_says_so(gpu, tmp_path, message):
    session = load(tmp_path, device="cuda")
    gpu.fails = RuntimeError(f"[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status: {message}")
    with pytest.raises(Failed, match="memory is too small for this batch") as caught:
        session.run(BATCH)
    assert "smaller batch" in caught.value.fix


def test_a_captured_batch_is_run_from_fixed_buffers_and_other_shapes_beside_it(tmp_path):
    model, weight = linear(tmp_path)
    session = real_session(str(model.path), providers=[CPU])
    replay = Replay(ort, session, ["y"], 0, "cpu")
    for seed, rows in enumerate((3, 3, 5, 3)):  # the first binds, the second is captured, the third is of another shape
        x = np.asfortranarray(np.random.default_rng(seed).normal(size=(rows, 4)).astype(np.float32))
        np.testing.assert_allclose(replay.run({"x": x})[0], np.maximum(x @ weight, 0), rtol=1e-5, atol=1e-6)


def test_a_session_with_captured_batches_answers_by_name(gpu, tmp_path, monkeypatch):
    monkeypatch.setattr(Replay, "__init__", _on_the_cpu(Replay.__init__))
    session = load(tmp_path, device="cuda", cuda_graph=True)
    assert gpu.opened[0][0][0][1]["enable_cuda_graph"] == "1"
    first, again = session.run(BATCH)["y"], session.run(BATCH)["y"]
    np.testing.assert_array_equal(first, again)
    session.close()


def _on_the_cpu(init: Any) -> Any:
    def patched(self: Any, library: Any, session: Any, outputs: list[str], number: int) -> None:
        init(self, library, session, outputs, number, "cpu")

    return patched


def gpu_machine(root: Path) -> Path:
    folder = root / "proc/driver/nvidia/gpus/0000:01:00.0"
    folder.mkdir(parents=True)
    (folder / "information").write_text("Model: \t\t NVIDIA H200\nIRQ:   \t 1\n")
    return root


def test_gpus_are_named_as_the_driver_names_them(tmp_path):
    assert nvidia.gpus(tmp_path) == ()
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "nvidia0").touch()
    (tmp_path / "dev" / "nvidiactl").touch()
    assert nvidia.gpus(tmp_path) == ("NVIDIA GPU",)
    assert nvidia.gpus(gpu_machine(tmp_path)) == ("NVIDIA H200",)


def test_a_device_is_usable_with_a_gpu_and_a_package_built_for_it(tmp_path, monkeypatch):
    ask = ("somewhere", "lib/cuda.so", "pip install it")
    assert nvidia.device_with(*ask, root=tmp_path).reason == "no NVIDIA GPU is here"
    gpu_machine(tmp_path)
    monkeypatch.setattr(nvidia, "package_folder", lambda name: tmp_path)
    missing = nvidia.device_with(*ask, root=tmp_path)
    assert (missing.usable, missing.command) == (False, "pip install it")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "cuda.so").touch()
    assert nvidia.device_with(*ask, root=tmp_path).usable


def test_tensorrt_needs_its_own_libraries(tmp_path, monkeypatch):
    for name in ("cuda", "tensorrt"):
        library = tmp_path / "capi" / f"libonnxruntime_providers_{name}.so"
        library.parent.mkdir(exist_ok=True)
        library.touch()
    monkeypatch.setattr(nvidia, "gpus", lambda root: ("NVIDIA H200",))
    monkeypatch.setattr(nvidia, "package_folder", lambda name: tmp_path if name == "onnxruntime" else None)
    monkeypatch.setattr(nvidia, "find_library", lambda name: None)
    found = devices_of(OnnxRuntime())
    assert found["cuda"].usable
    assert not found["tensorrt"].usable
    assert "tensorrt" in found["tensorrt"].command
    monkeypatch.setattr(nvidia, "find_library", lambda name: "libnvinfer.so.10")
    assert devices_of(OnnxRuntime())["tensorrt"].usable
    assert set(devices_of(Torch())) == {"cuda"}


def test_tensorrt_is_told_of_full_precision_before_its_libraries_load(gpu, tmp_path, monkeypatch):
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    load(tmp_path, "tf32", device="tensorrt")
    assert os.environ["NVIDIA_TF32_OVERRIDE"] == "1"
    load(tmp_path, "fp32", device="tensorrt")
    assert os.environ["NVIDIA_TF32_OVERRIDE"] == "0"
    folders = [providers[0][1]["trt_engine_cache_path"] for providers, _ in gpu.opened]
    assert len(set(folders)) == 2  # an engine is for one precision
