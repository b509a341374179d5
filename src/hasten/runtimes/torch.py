"""PyTorch: runs exported programs (.pt2) eagerly, or compiled by inductor."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from hasten.errors import Failed, HastenError, InvalidInput
from hasten.formats.pt2 import kind_of, open_program
from hasten.model import Model
from hasten.runtimes.base import Availability, OperatorTime, Settings, check_settings
from hasten.runtimes.nvidia import device_with

if TYPE_CHECKING:
    from hasten.runtimes.base import Batch

OPTIONS: Mapping[str, str] = {
    "compile": "whether inductor compiles the program (default false: eager); needs a C++ compiler",
    "freezing": "whether the compiler may fold and repack the weights (default true)",
    "max_autotune": "whether the compiler tries several kernels for each product (default false: it takes minutes)",
    "device": "cpu (default) or cuda; cuda:1 is the second",
}
"""Keys of `[runtime]` that this runtime understands besides precision, threads and streams."""

_COMPILERS = ("c++", "g++", "clang++")


class Torch:
    """Loads exported programs. Streams are threads that call one module."""

    name = "torch"
    accepts = frozenset({"pt2", "torch"})
    precisions = ("fp32", "bf16", "fp16")

    def availability(self) -> Availability:
        try:
            return Availability(True, version=version("torch"))
        except PackageNotFoundError:
            return Availability(False, "the package torch is not installed", "pip install 'hasten[torch]'")

    def devices(self) -> dict[str, Availability]:
        return {"cuda": device_with("torch", "lib/libtorch_cuda.so", "pip install --force-reinstall torch")}

    def load(self, model: Model, settings: Settings) -> TorchSession:
        check_settings(self.name, settings, self.precisions, OPTIONS)
        return TorchSession(model, settings)


def compiles() -> bool:
    """Whether there is a C++ compiler, which inductor needs on a CPU."""
    return any(shutil.which(os.environ.get("CXX", name)) for name in _COMPILERS)


class TorchSession:
    """A loaded program; safe to call from several threads."""

    def __init__(self, model: Model, settings: Settings) -> None:
        import torch

        self._settings, own = settings, settings.options
        self._names = [tensor.name for tensor in model.signature.inputs]
        self._device = str(own.get("device", "cpu"))
        if not re.fullmatch(r"cpu|cuda(:\d+)?", self._device):
            raise InvalidInput(f"runtime torch has no device {self._device!r}", "use cpu, cuda, or cuda:1")
        if self._device != "cpu" and not torch.cuda.is_available():
            raise InvalidInput("there is no CUDA device that PyTorch can use here", 'use device = "cpu"')
        if self._device != "cpu" and settings.precision == "fp32":
            torch.backends.cudnn.allow_tf32 = False  # convolutions would keep 10 bits of 23 by default
        try:
            self._module: Any = _opened(model, self._device)
        except torch.OutOfMemoryError as error:
            raise _run_error(error) from None
        self._precision = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(settings.precision or "fp32")
        self._pool: ThreadPoolExecutor | None = None
        self._local = threading.local()
        self._graph = self._module
        if own.get("compile"):
            if self._device == "cpu" and not compiles():
                raise InvalidInput("inductor needs a C++ compiler", "install one", "apt-get install g++")
            options: dict[str, Any] = {
                "freezing": bool(own.get("freezing", True)),
                "max_autotune": bool(own.get("max_autotune")),
            }
            self._module = torch.compile(self._module, dynamic=settings.shapes is None, options=options)

    def run(self, batch: Batch) -> dict[str, Any]:
        import torch

        missing = [name for name in self._names if name not in batch]
        if missing:
            raise InvalidInput(f"the model's batch misses {', '.join(missing)}", f"inputs: {', '.join(self._names)}")
        self._threads()
        try:
            with torch.inference_mode() if not self._settings.options.get("compile") else torch.no_grad():
                tensors = [torch.from_numpy(_writable(batch[name])).to(self._device) for name in self._names]
                if self._precision is None:
                    outputs = self._module(*tensors)
                else:
                    with torch.autocast(self._device.partition(":")[0], self._precision):
                        outputs = self._module(*tensors)
                return {name: _array(tensor) for name, tensor in outputs.items()}
        except Exception as error:
            raise _run_error(error) from None

    def begin(self, batch: Batch) -> Callable[[], dict[str, Any]]:
        return self.submit(batch).result

    def submit(self, batch: Batch) -> Future[dict[str, Any]]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._settings.streams or 1, thread_name_prefix="torch-stream")
        return self._pool.submit(self.run, batch)

    def operators(self, batch: Batch, repeats: int = 10) -> list[OperatorTime]:
        """Median times of the program's nodes, run one by one; those of a compiled program are its eager ones."""
        import torch

        if not hasattr(self._graph, "graph"):
            raise Failed("a module that cannot be exported has no operators to time", "see hasten bench instead")
        times: dict[str, list[float]] = {}
        # A GPU's kernels have only been asked for when a call returns.
        finished: Callable[[], None] = torch.cuda.synchronize if self._device != "cpu" else lambda: None

        class Timing(torch.fx.Interpreter):
            def run_node(self, node: torch.fx.Node) -> Any:
                start = time.perf_counter()
                result = super().run_node(node)
                finished()
                if node.op == "call_function":
                    times.setdefault(node.name, []).append(time.perf_counter() - start)
                return result

        self._threads()
        tensors = [torch.from_numpy(_writable(batch[name])).to(self._device) for name in self._names]
        timing = Timing(self._graph)
        with torch.inference_mode():
            for _ in range(max(1, repeats) + 1):
                timing.run(*tensors)
        executed = "aten" if self._device == "cpu" else "CUDA aten"
        kinds = {node.name: kind_of(node.target) for node in self._graph.graph.nodes}
        found = [
            OperatorTime(name, kinds[name], sorted(all_[1:])[len(all_[1:]) // 2] * 1e6, executed, (name,))
            for name, all_ in times.items()
        ]
        return sorted(found, key=lambda each: -each.microseconds)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        self._module = self._graph = None

    def _threads(self) -> None:
        """PyTorch's thread count belongs to the calling thread."""
        wanted = self._settings.threads
        if wanted is None and self._settings.streams not in (None, 1):
            wanted = max(1, len(os.sched_getaffinity(0)) // (self._settings.streams or 1))
        if wanted is not None and getattr(self._local, "threads", None) != wanted:
            import torch

            torch.set_num_threads(wanted)
            self._local.threads = wanted


def _opened(model: Model, device: str) -> Any:
    """The module on `device`: of an exported program, or made again by the user's function."""
    if model.format == "pt2":
        return open_program(model.path, device).module(check_guards=False)
    # By name: a bundle never holds such a model, so its run.py need not carry the way to make one.
    return importlib.import_module("hasten.intake.factory").reopened(model).to(device)


def _writable(array: Any) -> Any:
    import numpy as np

    flags = array.flags
    return array if flags.writeable and flags.c_contiguous else np.array(array, order="C")


def _array(tensor: Any) -> Any:
    import torch

    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor).numpy()


def _run_error(error: Exception) -> HastenError:
    if isinstance(error, HastenError):
        return error
    if type(error).__name__ == "OutOfMemoryError":
        cause = f"the device's memory is too small for this: {str(error).partition('.')[0]}"
        return Failed(cause, "use a smaller batch, or another device")
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return Failed(f"torch: {type(error).__name__}: {(lines[0] if lines else '')[:400]}")
