"""ONNX Runtime on NVIDIA GPUs: which providers a device means, with which options, and how captured graphs are run."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Mapping
from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any

from hasten.errors import InvalidInput
from hasten.paths import cache_dir
from hasten.runtimes.nvidia import package_folder

CUDA, TENSORRT = "CUDAExecutionProvider", "TensorrtExecutionProvider"
PROVIDERS_OF: Mapping[str, tuple[str, ...]] = {"cpu": (), "cuda": (CUDA,), "tensorrt": (TENSORRT, CUDA)}
PRECISIONS_OF: Mapping[str, tuple[str, ...]] = {
    "cpu": ("fp32",),
    "cuda": ("fp32", "tf32"),
    "tensorrt": ("fp32", "tf32", "bf16", "fp16", "int8"),
}
"""What each device computes fp32 models in. CUDA's kernels take the types of the file; TensorRT chooses by layer."""
LIBRARIES = {CUDA: "libonnxruntime_providers_cuda.so", TENSORRT: "libonnxruntime_providers_tensorrt.so"}
GPU_COMMAND = "pip uninstall -y onnxruntime && pip install 'onnxruntime-gpu[cuda,cudnn]'"
TENSORRT_COMMAND = "pip install 'tensorrt-cu13-libs<11'"
"""ONNX Runtime 1.31's provider links against TensorRT 10 and CUDA 13."""
TENSORRT_FILES = ("libnvinfer.so.*", "libnvinfer_plugin.so.*", "libnvonnxparser.so.*")
MEMORY_SAYS = ("out of memory", "Failed to allocate memory", "Available memory of", "CUDA failure 2:")


def device_of(options: Mapping[str, Any]) -> tuple[str, int]:
    """The device that `[runtime]` names, and its number: `cuda:1` is the second. Raises `InvalidInput`."""
    text = options.get("device", "cpu")
    name, _, number = str(text).partition(":")
    if name not in PROVIDERS_OF or (number and not number.isdecimal()) or (name == "cpu" and number):
        raise InvalidInput(
            f"runtime onnxruntime has no device {text!r}", f"use one of: {', '.join(PROVIDERS_OF)}, or cuda:1"
        )
    if name != "cpu" and options.get("providers"):
        raise InvalidInput("device and providers say the same twice", "leave one of them out")
    return name, int(number or 0)


def provider_options(
    device: tuple[str, int], precision: str | None, graph: bool, cache: Path | None = None
) -> dict[str, dict[str, str]]:
    """The options of each provider of `device`, the preferred first.

    fp32 is fp32: without it CUDA would multiply in TF32, which keeps 10 bits of 23. TensorRT's engines are kept in
    `cache` (default: hasten's cache folder) by precision, as building one takes minutes.
    """
    name, number = device
    if name == "cpu":
        return {}
    cuda = {"device_id": str(number)}
    if precision in ("fp32", "tf32"):
        cuda["use_tf32"] = "1" if precision == "tf32" else "0"
    if name == "cuda":
        return {CUDA: {**cuda, "enable_cuda_graph": "1"} if graph else cuda}
    folder = (cache or cache_dir() / "tensorrt") / (precision or "default")
    folder.mkdir(parents=True, exist_ok=True)
    own = {
        "device_id": str(number),
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": str(folder),
        "trt_timing_cache_enable": "1",
        "trt_timing_cache_path": str(folder),
    }
    if precision in ("bf16", "fp16", "int8"):
        own[f"trt_{precision}_enable"] = "1"
    if precision == "fp16":
        own["trt_layer_norm_fp32_fallback"] = "1"  # a sum of squares overflows fp16
    if graph:
        own["trt_cuda_graph_enable"] = "1"
    return {TENSORRT: own, CUDA: cuda}


def load_libraries(ort: Any, device: str, precision: str | None) -> None:
    """Load CUDA, cuDNN and TensorRT where they are Python packages: the system's loader does not look there."""
    if device == "cpu":
        return
    if device == "tensorrt" and precision == "fp32":
        os.environ["NVIDIA_TF32_OVERRIDE"] = "0"  # the provider has no option for it; read when the libraries load
    if hasattr(ort, "preload_dlls"):  # from 1.21 on
        with redirect_stdout(StringIO()):  # it prints what it misses; `why_not_started` says it where it matters
            ort.preload_dlls()
    folder = package_folder("tensorrt_libs") if device == "tensorrt" else None
    for library in [path for pattern in TENSORRT_FILES for path in folder.glob(pattern)] if folder else ():
        with suppress(OSError):
            ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)


def why_not_started(ort: Any, names: list[str]) -> tuple[str, str, str]:
    """Which library keeps these providers from starting, the fix and the command; empty where none does."""
    folder = Path(str(getattr(ort, "__file__", ""))).parent / "capi"
    for name in names:
        library = folder / LIBRARIES.get(name, "")
        if name in LIBRARIES and library.exists():
            with suppress(OSError):
                ctypes.CDLL(str(folder / "libonnxruntime_providers_shared.so"))
            try:
                ctypes.CDLL(str(library))
            except OSError as error:
                missing = str(error).partition(":")[0]
                if missing == "libcuda.so.1":
                    return f"there is no NVIDIA driver ({error})", "install the driver, or use the CPU", ""
                command = TENSORRT_COMMAND if missing.startswith(("libnvinfer", "libnvonnxparser")) else GPU_COMMAND
                return str(error), "install the library, or use another device", command
    return "", "", ""


def lacks_memory(message: str) -> bool:
    """Whether an error of ONNX Runtime says that the device's memory is full."""
    return any(part in message for part in MEMORY_SAYS)


class Replay:
    """Runs a session whose provider captures a CUDA graph: batches of the first shape are replayed from fixed buffers.

    Batches of other shapes run uncaptured. One batch at a time; `buffers` is where the buffers are.
    """

    def __init__(self, ort: Any, session: Any, outputs: list[str], number: int, buffers: str = "cuda") -> None:
        self._ort, self._session, self._names = ort, session, outputs
        self._place = (buffers, number)
        self._lock = threading.Lock()
        self._uncaptured = ort.RunOptions()
        self._uncaptured.add_run_config_entry("gpu_graph_id", "-1")
        self._shapes: dict[str, tuple[int, ...]] | None = None
        self._inputs: dict[str, Any] = {}
        self._outputs: list[Any] = []
        self._binding: Any = None

    def run(self, batch: Mapping[str, Any]) -> list[Any]:
        """The outputs, on the host."""
        shapes = {name: array.shape for name, array in batch.items()}
        with self._lock:
            if self._shapes is None:
                return self._bind(batch, shapes)
            if shapes != self._shapes:
                return list(self._session.run(self._names, dict(batch), self._uncaptured))
            for name, value in self._inputs.items():
                value.update_inplace(_in_order(batch[name]))
            self._session.run_with_iobinding(self._binding)
            return [value.numpy() for value in self._outputs]

    def _bind(self, batch: Mapping[str, Any], shapes: dict[str, tuple[int, ...]]) -> list[Any]:
        """A first run uncaptured tells the outputs' shapes; the next one captures."""
        found = list(self._session.run(self._names, dict(batch), self._uncaptured))
        make = self._ort.OrtValue.ortvalue_from_numpy
        self._inputs = {name: make(_in_order(array), *self._place) for name, array in batch.items()}
        self._outputs = [make(_in_order(array), *self._place) for array in found]
        self._binding = self._session.io_binding()
        for name, value in self._inputs.items():
            self._binding.bind_ortvalue_input(name, value)
        for name, value in zip(self._names, self._outputs, strict=True):
            self._binding.bind_ortvalue_output(name, value)
        self._shapes = shapes
        return found


def _in_order(array: Any) -> Any:
    import numpy as np

    return np.ascontiguousarray(array)
