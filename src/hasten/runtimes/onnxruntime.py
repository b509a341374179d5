"""ONNX Runtime: executes ONNX models on the CPU, on NVIDIA GPUs, and on what else it has execution providers for."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.errors import Failed, HastenError, InvalidInput
from hasten.model import Model
from hasten.runtimes.base import Availability, OperatorTime, Settings, check_settings
from hasten.runtimes.onnxruntime_device import (
    CUDA,
    GPU_COMMAND,
    LIBRARIES,
    PRECISIONS_OF,
    TENSORRT,
    TENSORRT_COMMAND,
    Replay,
    device_of,
    lacks_memory,
    load_libraries,
    provider_options,
    why_not_started,
)

if TYPE_CHECKING:
    from hasten.runtimes.base import Batch

OPTIONS: Mapping[str, str] = {
    "execution_mode": "sequential (default) or parallel: independent branches of the graph at once",
    "inter_op_threads": "threads that run branches in the parallel mode",
    "graph_optimization": "disable, basic, extended, layout or all (default)",
    "spinning": "whether idle threads spin (the default) or sleep, which is kinder to other streams",
    "arena": "whether the CPU memory arena is kept (default true)",
    "memory_pattern": "whether allocations of the first run are planned ahead for the next (default true)",
    "device": "cpu (default), cuda or tensorrt; cuda:1 is the second",
    "cuda_graph": "whether a batch's kernels are captured once and launched together (default false); one stream",
    "providers": "execution providers in order of preference; the CPU follows the last",
    "provider_options": "a table of options for each named provider",
    "session": "a table of raw session configuration entries",
}
"""Keys of `[runtime]` that this runtime understands besides precision, threads and streams."""

_LEVELS = {
    "disable": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "layout": "ORT_ENABLE_LAYOUT",
    "all": "ORT_ENABLE_ALL",
}
_MODES = {"sequential": "ORT_SEQUENTIAL", "parallel": "ORT_PARALLEL"}
_PACKAGES = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-directml")


class OnnxRuntime:
    """Loads ONNX files. Streams are threads that call one session; a stream's caller is one of its threads."""

    name = "onnxruntime"
    accepts = frozenset({"onnx"})
    precisions = ("fp32",)

    def availability(self) -> Availability:
        for package in _PACKAGES:
            try:
                return Availability(True, version=version(package))
            except PackageNotFoundError:
                continue
        return Availability(False, "the package onnxruntime is not installed", "pip install onnxruntime")

    def devices(self) -> dict[str, Availability]:
        from hasten.runtimes.nvidia import device_with, tensorrt_is_installed

        cuda, tensorrt = (
            device_with("onnxruntime", f"capi/{LIBRARIES[name]}", GPU_COMMAND) for name in (CUDA, TENSORRT)
        )
        if tensorrt.usable and not tensorrt_is_installed():
            tensorrt = Availability(False, "TensorRT's libraries are not installed", TENSORRT_COMMAND)
        return {"cuda": cuda, "tensorrt": tensorrt}

    def load(self, model: Model, settings: Settings) -> OnnxRuntimeSession:
        device, _ = device_of(settings.options)
        check_settings(
            self.name if device == "cpu" else f"{self.name} on {device}", settings, PRECISIONS_OF[device], OPTIONS
        )
        if settings.options.get("cuda_graph") and (device == "cpu" or (settings.streams or 1) > 1):
            raise InvalidInput("cuda_graph = true takes a GPU and one stream", "leave it out, or set streams = 1")
        return OnnxRuntimeSession(model, settings)


class OnnxRuntimeSession:
    """A loaded model; safe to call from several threads."""

    def __init__(self, model: Model, settings: Settings) -> None:
        self._model, self._settings = model, settings
        self._streams = settings.streams or 1
        self._session = _open(model, settings)
        self._outputs = [output.name for output in self._session.get_outputs()]
        self._inputs = frozenset(tensor.name for tensor in self._session.get_inputs())
        self._pool: ThreadPoolExecutor | None = None
        self._replay = _replay(self._session, self._outputs, settings)

    def run(self, batch: Batch) -> dict[str, Any]:
        try:
            if self._replay is not None:
                return dict(zip(self._outputs, self._replay.run(batch), strict=True))
            return dict(zip(self._outputs, self._session.run(self._outputs, batch), strict=True))
        except Exception as error:
            raise _run_error(error, self._inputs, batch) from None

    def begin(self, batch: Batch) -> Callable[[], dict[str, Any]]:
        return self.submit(batch).result

    def submit(self, batch: Batch) -> Future[dict[str, Any]]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._streams, thread_name_prefix="onnxruntime-stream")
        return self._pool.submit(self.run, batch)

    def operators(self, batch: Batch, repeats: int = 10) -> list[OperatorTime]:
        from hasten.runtimes.onnxruntime_profile import profile

        # Kernels of a captured graph cannot be told apart.
        settings = replace(self._settings, options={**self._settings.options, "cuda_graph": False})

        def open_profiled(prefix: str, optimised: str | None) -> Any:
            return _open(self._model, settings, profile_prefix=prefix, optimised=optimised)

        try:
            return profile(open_profiled, dict(batch), repeats)
        except HastenError:
            raise
        except Exception as error:
            raise _run_error(error, self._inputs, batch) from None

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
        self._session = self._replay = None


def _open(model: Model, settings: Settings, profile_prefix: str = "", optimised: str | None = None) -> Any:
    # Since 1.32 Linux wheels report too, from the moment of import, and leave a device id in the user's cache folder.
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    import onnxruntime as ort

    # Only fatal messages: what goes wrong reaches us as an exception too.
    ort.set_default_logger_severity(4)
    ort.disable_telemetry_events()
    options = _session_options(ort, model, settings)
    if profile_prefix:
        options.enable_profiling = True
        options.profile_file_prefix = profile_prefix
    if optimised:
        options.optimized_model_filepath = optimised
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights.bin")
    providers = _providers(ort, settings)
    load_libraries(ort, device_of(settings.options)[0], settings.precision)
    try:
        # A provider that fails must not be replaced in silence.
        session = ort.InferenceSession(os.fspath(model.path), options, providers=providers, enable_fallback=0)
    except Exception as error:
        _require(ort, [], providers)
        raise _load_error(error, model.path) from None
    _require(ort, session.get_providers(), providers)
    return session


def _replay(session: Any, outputs: list[str], settings: Settings) -> Replay | None:
    if not settings.options.get("cuda_graph"):
        return None
    import onnxruntime as ort

    return Replay(ort, session, outputs, device_of(settings.options)[1])


def _session_options(ort: Any, model: Model, settings: Settings) -> Any:
    own = settings.options
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = getattr(
        ort.GraphOptimizationLevel, _choice(own, "graph_optimization", _LEVELS, "all")
    )
    options.execution_mode = getattr(ort.ExecutionMode, _choice(own, "execution_mode", _MODES, "sequential"))
    options.intra_op_num_threads = intra_op_threads(settings.threads, settings.streams)
    if "inter_op_threads" in own:
        options.inter_op_num_threads = _count(own, "inter_op_threads")
    options.enable_cpu_mem_arena = bool(own.get("arena", True))
    options.enable_mem_pattern = bool(own.get("memory_pattern", True))
    if "spinning" in own:
        options.add_session_config_entry("session.intra_op.allow_spinning", "1" if own["spinning"] else "0")
    for key, value in _table(own, "session").items():
        options.add_session_config_entry(str(key), str(value))
    for name, size in _fixed_dimensions(model, settings.shapes).items():
        options.add_free_dimension_override_by_name(name, size)
    return options


def intra_op_threads(threads: int | None, streams: int | None) -> int:
    """Size of the session's thread pool, so that `streams` callers have `threads` each, themselves included.

    0 leaves ONNX Runtime's default (one thread a physical core), unless this process may use only some of the cores,
    which that default does not see.
    """
    allowed, all_cores = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    if threads is None:
        if streams in (None, 1):
            return allowed if allowed < all_cores else 0
        threads = max(1, allowed // (streams or 1))
    return (streams or 1) * (threads - 1) + 1


def _fixed_dimensions(model: Model, shapes: Mapping[str, tuple[int, ...]] | None) -> dict[str, int]:
    """The sizes of named dynamic axes under `shapes`; constant folding then sees them."""
    sizes: dict[str, int] = {}
    for tensor in model.signature.inputs:
        shape = (shapes or {}).get(tensor.name)
        if shape is None or tensor.shape is None:
            continue
        if len(shape) != len(tensor.shape):
            raise InvalidInput(f"input {tensor.name} has {len(tensor.shape)} axes, not {len(shape)}")
        for dim, size in zip(tensor.shape, shape, strict=True):
            if isinstance(dim, str) and sizes.setdefault(dim, size) != size:
                raise InvalidInput(f"axis {dim!r} cannot be {sizes[dim]} and {size} at once")
            if isinstance(dim, int) and dim != size:
                raise InvalidInput(f"input {tensor.name} has shape {list(tensor.shape)}, not {list(shape)}")
    return sizes


def _providers(ort: Any, settings: Settings) -> list[Any]:
    options = settings.options
    graph = bool(options.get("cuda_graph"))
    own = provider_options(device_of(options), settings.precision, graph)
    named = options.get("providers", [])
    named = list(own) or ([named] if isinstance(named, str) else list(named))
    missing = sorted(set(named) - set(ort.get_available_providers()))
    if missing:
        raise InvalidInput(
            f"this onnxruntime has no {', '.join(missing)}",
            f"use one of: {', '.join(ort.get_available_providers())}; the GPU providers are in another package",
            GPU_COMMAND,
        )
    if "CPUExecutionProvider" not in named:
        named.append("CPUExecutionProvider")
    tables = _table(options, "provider_options")
    merged = {
        name: {**own.get(name, {}), **{key: str(value) for key, value in tables.get(name, {}).items()}}
        for name in named
    }
    return [(name, merged[name]) if merged[name] else name for name in named]


def _require(ort: Any, started: Sequence[str], providers: list[Any]) -> None:
    """Raise `InvalidInput` for a provider that is not among those `started`: ONNX Runtime leaves it out in silence.

    Where none has, as the session was not opened, only for one whose libraries cannot be loaded.
    """
    wanted = [entry[0] if isinstance(entry, tuple) else entry for entry in providers]
    missing = [name for name in wanted if name not in started and name != "CPUExecutionProvider"]
    reason, fix, command = why_not_started(ort, missing)
    if reason or (started and missing):
        raise InvalidInput(
            f"{', '.join(missing)} could not start{f': {reason}' if reason else ''}",
            fix or "install the libraries that it needs, or leave it out",
            command,
        )


def _table(options: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    table = options.get(key, {})
    if not isinstance(table, Mapping):
        raise InvalidInput(f"{key} of runtime onnxruntime is a table, not {table!r}")
    return table


def _choice(options: Mapping[str, Any], key: str, choices: Mapping[str, str], default: str) -> str:
    value = options.get(key, default)
    if value not in choices:
        raise InvalidInput(f"{key} = {value!r} is not known to onnxruntime", f"use one of: {', '.join(choices)}")
    return choices[value]


def _count(options: Mapping[str, Any], key: str) -> int:
    value = options[key]
    if not isinstance(value, int) or value < 1:
        raise InvalidInput(f"{key} = {value!r} makes no sense", f"give {key} as a whole number from 1 up")
    return value


def _readable(error: Exception) -> str:
    """The message without the code prefix `[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : `, on one line."""
    text = " ".join(str(error).split())
    if text.startswith("[ONNXRuntimeError]"):
        text = text.split(" : ", 3)[-1]
    return text[:500]


def _load_error(error: Exception, path: Path) -> HastenError:
    kind = type(error).__name__
    cause = f"onnxruntime cannot load {path.name}: {_readable(error)}"
    if lacks_memory(str(error)):
        return Failed(f"the device's memory is too small for the model: {_readable(error)}", "use another device")
    if kind in ("InvalidGraph", "InvalidProtobuf", "NoSuchFile", "InvalidArgument"):
        return InvalidInput(cause)
    return Failed(cause)


def _run_error(error: Exception, inputs: frozenset[str], batch: Batch) -> HastenError:
    if isinstance(error, HastenError):
        return error
    missing, extra = sorted(inputs - set(batch)), sorted(set(batch) - inputs)
    if missing or extra:
        found = [f"misses {', '.join(missing)}"] * bool(missing) + [f"has no input {', '.join(extra)}"] * bool(extra)
        return InvalidInput(f"the model's batch {' and '.join(found)}", f"the inputs are: {', '.join(sorted(inputs))}")
    cause = f"onnxruntime: {_readable(error)}"
    if lacks_memory(str(error)):
        return Failed(f"the device's memory is too small for this batch: {_readable(error)}", "use a smaller batch")
    return InvalidInput(cause) if type(error).__name__ == "InvalidArgument" else Failed(cause)
