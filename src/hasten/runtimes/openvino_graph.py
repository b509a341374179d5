"""Reads a model with OpenVINO and compiles it under hasten's settings."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from typing import Any

from hasten.errors import Failed, InvalidInput
from hasten.model import Model
from hasten.runtimes.base import Settings

OPTIONS: Mapping[str, str] = {
    "device": "CPU (default), GPU, NPU or AUTO",
    "pinning": "whether threads are pinned to cores (ENABLE_CPU_PINNING)",
    "hyper_threading": "whether the second thread of a core is used (ENABLE_HYPER_THREADING)",
    "execution_mode": "performance (default) or accuracy: never less exact than the model, quantisation included",
    "hint": "latency (default) or throughput: how OpenVINO chooses streams where `streams` is not given",
    "denormals": "whether tiny numbers become zero (CPU_DENORMALS_OPTIMIZATION)",
    "dynamic_quantization_group_size": "0 turns the CPU's dynamic quantisation of weight-only models off",
    "kv_cache_precision": "what keys and values of a language model are kept in: u8, u4, bf16, f16 or f32",
    "mmap": "whether weights are mapped from the file (default true)",
    "cache": "a folder that keeps compiled models between loads",
    "properties": "a table of raw device properties",
}
"""Keys of `[runtime]` that this runtime understands besides precision, threads and streams."""

PRECISIONS = {"fp32": ("f32", "FP32"), "bf16": ("bf16", "BF16"), "fp16": ("f16", "FP16")}
_PASSED = {
    "pinning": "ENABLE_CPU_PINNING",
    "hyper_threading": "ENABLE_HYPER_THREADING",
    "denormals": "CPU_DENORMALS_OPTIMIZATION",
    "dynamic_quantization_group_size": "DYNAMIC_QUANTIZATION_GROUP_SIZE",
    "kv_cache_precision": "KV_CACHE_PRECISION",
    "cache": "CACHE_DIR",
}


def import_openvino() -> Any:
    """OpenVINO without its telemetry, which reports from the moment of import where its package can be imported."""
    reporter = "openvino_telemetry"
    if "openvino" in sys.modules or reporter in sys.modules:
        import openvino

        return openvino
    sys.modules[reporter] = None  # type: ignore[assignment]  # an ImportError makes OpenVINO use a stub
    try:
        import openvino
    finally:
        del sys.modules[reporter]
    return openvino


class Graph:
    """A model file as OpenVINO read it, with the core that read it."""

    def __init__(self, model: Model, mmap: bool) -> None:
        ov = import_openvino()
        self.name = model.path.name
        try:
            self.core = ov.Core()
            self.core.set_property({"ENABLE_MMAP": mmap})
            self.model = self.core.read_model(os.fspath(model.path))
        except Exception as error:
            raise Failed(f"openvino cannot load {self.name}: {readable(error)}") from None

    def compile(self, settings: Settings, extra: Mapping[str, Any]) -> Any:
        wanted = properties(settings)
        device = str(settings.options.get("device", "CPU"))
        check_precision(self.core, settings, device)
        try:
            return self.core.compile_model(self._reshaped(settings.shapes), device, {**wanted, **extra})
        except Exception as error:
            text = readable(error)
            if "roperty" in text and "nsupported" in text:
                raise InvalidInput(f"openvino: {text}") from None
            raise Failed(f"openvino cannot load {self.name}: {text}") from None

    def _reshaped(self, shapes: Mapping[str, tuple[int, ...]] | None) -> Any:
        if shapes is None:
            return self.model
        model = self.model.clone()
        names = {name for port in model.inputs for name in port.get_names()}
        model.reshape({name: list(shape) for name, shape in shapes.items() if name in names})
        return model


def check_precision(core: Any, settings: Settings, device: str) -> None:
    """Raise `InvalidInput` for a precision that the CPU lacks: OpenVINO would take the hint and run in another."""
    if settings.precision and device == "CPU":
        spoken = core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        if PRECISIONS[settings.precision][1] not in spoken:
            usable = ", ".join(name for name, (_, word) in PRECISIONS.items() if word in spoken)
            raise InvalidInput(f"this CPU has no {settings.precision} for OpenVINO", f"use one of: {usable}")


def properties(settings: Settings) -> dict[str, Any]:
    """OpenVINO's own names and values for `settings`."""
    options = settings.options
    found: dict[str, Any] = {_PASSED[key]: value for key, value in options.items() if key in _PASSED}
    if settings.precision is not None:
        found["INFERENCE_PRECISION_HINT"] = PRECISIONS[settings.precision][0]
    for key, own, known in (
        ("execution_mode", "EXECUTION_MODE_HINT", ("performance", "accuracy")),
        ("hint", "PERFORMANCE_HINT", ("latency", "throughput")),
    ):
        if key in options:
            if options[key] not in known:
                raise InvalidInput(f"{key} = {options[key]!r} is not known to openvino", f"use {' or '.join(known)}")
            found[own] = options[key].upper()
    if settings.streams is not None:
        found["NUM_STREAMS"] = settings.streams
    if settings.threads is not None:
        found["INFERENCE_NUM_THREADS"] = settings.threads * (settings.streams or 1)
        found.setdefault("NUM_STREAMS", 1)
    raw = options.get("properties", {})
    if not isinstance(raw, Mapping):
        raise InvalidInput(f"properties of runtime openvino is a table, not {raw!r}")
    return {**found, **raw}


def readable(error: Exception) -> str:
    """The message without the `Exception from src/...` lines that lead to it, on one line."""
    unknown = re.search(r"No conversion rule found for operations: (.+)", str(error))
    if unknown:
        return f"it has no {unknown[1].strip()}"
    lines = [line.strip() for line in str(error).splitlines()]
    kept = [line.removeprefix("Caught exception: ") for line in lines if line]
    kept = [line for line in kept if not line.startswith("Exception from ")] or kept
    return " ".join(" ".join(kept).split())[:500]
