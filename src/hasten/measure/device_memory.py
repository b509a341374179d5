"""Measures the memory that a variant takes on the NVIDIA GPU, through NVML."""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from typing import Any

from hasten.runtimes.nvidia import gpus


def used_bytes(library: Any = None) -> int | None:
    """The memory in use on all GPUs, whoever uses it; None where NVML cannot be asked.

    `library` stands in for pynvml. NVML's counts for each process are not to be had from inside a container.
    """
    if library is None:
        if not gpus():
            return None
        with suppress(ImportError):
            library = import_module("pynvml")
        if library is None:
            return None
    try:
        library.nvmlInit()
        handles = [library.nvmlDeviceGetHandleByIndex(index) for index in range(library.nvmlDeviceGetCount())]
        return sum(int(library.nvmlDeviceGetMemoryInfo(handle).used) for handle in handles)
    except library.NVMLError:
        return None


def grown(before: int | None) -> int | None:
    """By how many bytes the memory in use grew since it was `before`; None where it did not, or is not known.

    Runtimes keep what they took, so after a round this is what a variant needs. What others take meanwhile counts too.
    """
    now = None if before is None else used_bytes()
    return now - before if now is not None and before is not None and now > before else None
