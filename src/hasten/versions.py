"""Which versions of what were in play: part of a study's key and of every report."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

PACKAGES = (
    *("hasten", "numpy", "onnx", "onnxruntime", "onnxruntime-gpu", "openvino", "nncf", "onnxslim", "torch"),
    *(
        "ctranslate2",
        "iree-base-compiler",
        "iree-base-runtime",
        "llama-cpp-python",
        "onnxruntime-genai",
        "openvino-genai",
    ),
)


def versions() -> dict[str, str]:
    """Installed versions by package name, without importing any of them; absent packages are left out."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
