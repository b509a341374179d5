"""Tiny ONNX models for the tests of runtimes, with the handle that hasten gives them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import helper

from hasten.model import Model, Tensor
from onnx_files import save


def linear(folder: Path, rows: int | str = "n", width: int = 4, out: int = 3) -> tuple[Model, np.ndarray]:
    """y = relu(x @ w), and w."""
    weight = np.random.default_rng(0).normal(size=(width, out)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"], name="project"),
        helper.make_node("Relu", ["product"], ["y"], name="clip"),
    ]
    model = save(
        folder / f"linear_{rows}.onnx",
        nodes,
        [Tensor("x", "float32", (rows, width))],
        [Tensor("y", "float32", (rows, out))],
        {"w": weight},
    )
    return model, weight


def reshaped(folder: Path) -> Model:
    """y = x in the shape that the second input asks for: fails at run time where it does not fit."""
    return save(
        folder / "reshape.onnx",
        [helper.make_node("Reshape", ["x", "shape"], ["y"], name="reshape")],
        [Tensor("x", "float32", ("n", "m")), Tensor("shape", "int64", (2,))],
        [Tensor("y", "float32", (None, None))],
    )
