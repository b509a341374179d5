"""Tells from files alone which NVIDIA GPUs are here, and whether a runtime's package brings what they need."""

from __future__ import annotations

import importlib.util
from ctypes.util import find_library
from pathlib import Path

from hasten.runtimes.base import Availability

TENSORRT = "nvinfer"


def gpus(root: Path = Path("/")) -> tuple[str, ...]:
    """The names of the GPUs that the driver shows; in some containers it shows no names, and the devices alone tell."""
    found = []
    for path in sorted((root / "proc/driver/nvidia/gpus").glob("*/information")):
        try:
            fields = dict(line.split(":", 1) for line in path.read_text().splitlines() if ":" in line)
        except OSError:
            continue
        found.append(" ".join(fields.get("Model", "NVIDIA GPU").split()))
    return tuple(found) or tuple("NVIDIA GPU" for _ in (root / "dev").glob("nvidia[0-9]*"))


def package_folder(name: str) -> Path | None:
    """Where the package `name` is installed, found without importing it."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    places = list(spec.submodule_search_locations or []) if spec is not None else []
    return Path(places[0]) if places else None


def device_with(package: str, library: str, command: str, root: Path = Path("/")) -> Availability:
    """Whether `package` has the file `library` and there is a GPU for it; else why not, and what adds the file."""
    if not gpus(root):
        return Availability(False, "no NVIDIA GPU is here")
    folder = package_folder(package)
    if folder is None or not (folder / library).exists():
        return Availability(False, f"the installed {package} is built for the CPU", command)
    return Availability(True)


def tensorrt_is_installed() -> bool:
    """Whether TensorRT's own libraries are here: as a Python package, or of the system."""
    return package_folder("tensorrt_libs") is not None or find_library(TENSORRT) is not None
