"""IREE: ONNX models compiled ahead of time for this processor, by way of MLIR and LLVM."""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from hasten.errors import Failed, HastenError, InvalidInput
from hasten.model import Model
from hasten.runtimes.base import Availability, OperatorTime, Settings, check_settings
from hasten.runtimes.iree_compiler import OPT_LEVELS, FixedShapes, NotCompiled, compiled_program

if TYPE_CHECKING:
    from hasten.runtimes.base import Batch

IREE_OPTIONS = {"opt_level": f"how much the compiler does: {', '.join(OPT_LEVELS)} (default: its own choice)"}
"""Keys of `[runtime]` that this runtime understands besides precision, threads and streams."""
MOST_PROGRAMS = 8
"""So many programs of a session, each for one shape, are in memory at once; the one used longest ago makes room."""
_POOL: list[int] = []
"""How many threads IREE's own pool has: it is made once in a process."""
_POOL_LOCK = threading.Lock()


class Iree:
    """Loads ONNX files. Streams are threads that call one program."""

    name = "iree"
    package = "iree-base-runtime"
    beside = ("iree-base-compiler", "onnx")
    accepts = frozenset({"onnx"})
    precisions = ("fp32",)
    probed = (
        False  # its compiler makes one kernel of the probe's row of operators, and starting each then costs nothing
    )

    def availability(self) -> Availability:
        for package in (self.package, *self.beside):
            try:
                version(package)
            except PackageNotFoundError:
                return Availability(False, f"the package {package} is not installed", "pip install 'hasten[iree]'")
        return Availability(True, version=version(self.package))

    def load(self, model: Model, settings: Settings) -> IreeSession:
        check_settings(self.name, settings, self.precisions, IREE_OPTIONS)
        level = settings.options.get("opt_level")
        if level is not None and level not in OPT_LEVELS:
            raise InvalidInput(f"opt_level = {level!r} is not known to iree", f"use one of: {', '.join(OPT_LEVELS)}")
        return IreeSession(model, settings)


class IreeSession:
    """A compiled model; safe to call from several threads.

    One program takes batches of every shape. Where the compiler cannot make it, each shape gets a program of its own
    when it is first seen.
    """

    def __init__(self, model: Model, settings: Settings) -> None:
        self._model, self._level = model, settings.options.get("opt_level")
        self._names = [tensor.name for tensor in model.signature.inputs]
        self._outputs = [tensor.name for tensor in model.signature.outputs]
        self._streams = settings.streams or 1
        self._threads = settings.threads or max(1, len(os.sched_getaffinity(0)) // self._streams)
        self._programs: OrderedDict[FixedShapes | None, Callable[..., Any]] = OrderedDict()
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._device = _iree_device(self._threads, self._streams)
        self._fixed = None if settings.shapes is None else _fixed_shapes(settings.shapes)
        self._each = False
        try:
            self._program(self._fixed)
        except NotCompiled:
            # With shapes that are known, an operator may be one that the compiler can do.
            self._each = self._fixed is None and _is_dynamic(model)
            if not self._each:
                raise

    def run(self, batch: Batch) -> dict[str, Any]:
        import numpy as np

        missing = [name for name in self._names if name not in batch]
        if missing:
            raise InvalidInput(f"the model's batch misses {', '.join(missing)}", f"inputs: {', '.join(self._names)}")
        arrays = {name: np.ascontiguousarray(batch[name]) for name in self._names}
        program = self._program(self._key(arrays))
        try:
            found = program(*arrays.values())
            outputs = found if isinstance(found, tuple) else (found,)
            # Copied: IREE 3.13's own views do not keep the memory that they show, and the next batches overwrite it.
            return {name: each.to_host().copy() for name, each in zip(self._outputs, outputs, strict=True)}
        except Exception as error:
            raise _iree_error(error) from None

    def begin(self, batch: Batch) -> Callable[[], dict[str, Any]]:
        return self.submit(batch).result

    def submit(self, batch: Batch) -> Future[dict[str, Any]]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._streams, thread_name_prefix="iree-stream")
        return self._pool.submit(self.run, batch)

    def operators(self, batch: Batch, repeats: int = 10) -> list[OperatorTime]:
        """Median times of the kernels that the compiler made, from IREE's own tools in a process of their own."""
        from hasten.runtimes.iree_profile import profile

        arrays = {name: batch[name] for name in self._names}
        path = compiled_program(self._model, self._key(arrays), self._level)
        return profile(path, list(arrays.values()), self._threads, repeats)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        self._programs.clear()

    def _key(self, arrays: Mapping[str, Any]) -> FixedShapes | None:
        """Which program takes this batch."""
        return _fixed_shapes({name: array.shape for name, array in arrays.items()}) if self._each else self._fixed

    def _program(self, shapes: FixedShapes | None) -> Callable[..., Any]:
        with self._lock:
            if shapes not in self._programs:
                self._programs[shapes] = self._open(shapes)
                if len(self._programs) > MOST_PROGRAMS:
                    self._programs.popitem(last=False)
            self._programs.move_to_end(shapes)
            return self._programs[shapes]

    def _open(self, shapes: FixedShapes | None) -> Callable[..., Any]:
        path = compiled_program(self._model, shapes, self._level)
        import iree.runtime

        try:
            config = iree.runtime.Config(device=self._device)
            module = iree.runtime.VmModule.mmap(config.vm_instance, os.fspath(path))
            entry = next(name for name in module.function_names if not name.startswith("__") and "$" not in name)
            found: Callable[..., Any] = iree.runtime.load_vm_module(module, config)[entry]
            return found
        except Exception as error:
            path.unlink(missing_ok=True)
            raise Failed(f"iree cannot load {self._model.path.name}: {_iree_said(error)}", "try again") from None


def _iree_device(threads: int, streams: int) -> Any:
    """Where programs run: on the thread that calls, or, with several threads to a stream, on IREE's own pool.

    Raises `Failed` for a second size of the pool in one process.
    """
    import iree.runtime

    if threads == 1:
        return iree.runtime.get_device("local-sync")
    with _POOL_LOCK:
        if not _POOL:
            iree.runtime.flags.parse_flags(f"--task_topology_group_count={threads * streams}")
            _POOL.append(threads * streams)
    if _POOL[0] != threads * streams:
        raise Failed(
            f"iree runs {_POOL[0]} threads in this process, and cannot run {threads * streams} beside them",
            "keep threads and streams, set threads = 1, or use another process",
        )
    return iree.runtime.get_device("local-task")


def _is_dynamic(model: Model) -> bool:
    return any(not isinstance(size, int) for tensor in model.signature.inputs for size in tensor.shape or (None,))


def _fixed_shapes(shapes: Mapping[str, tuple[int, ...]]) -> FixedShapes:
    return tuple(sorted((name, tuple(int(size) for size in shape)) for name, shape in shapes.items()))


def _iree_said(error: Exception) -> str:
    """IREE's message without its source files and stack, on one line."""
    text = str(error).partition("; while ")[0].partition("\n")[0]
    return re.sub(r"^Error invoking function: \S+ [A-Z_]+; ", "", text)[:400] or type(error).__name__


def _iree_error(error: Exception) -> HastenError:
    if isinstance(error, HastenError):
        return error
    cause = f"iree: {_iree_said(error)}"
    return InvalidInput(cause) if "INVALID_ARGUMENT" in str(error) else Failed(cause)
