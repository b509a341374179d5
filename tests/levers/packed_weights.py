"""OpenVINO graphs of products that share an input, with weights in fp32 or packed in 4 bits."""

from __future__ import annotations

from typing import Any

import numpy as np

DRAW = np.random.default_rng(0)


def plain(rows: int, kind: str) -> Any:
    from openvino import opset13 as op

    return op.constant(DRAW.normal(size=(rows, 8)).astype(np.float32))


def packed(rows: int, kind: str) -> Any:
    """Weights of 4 bits in groups of 4, with scales and zero points, as GGUF files become in OpenVINO."""
    import openvino as ov
    from openvino import opset13 as op

    held = ov.Tensor(ov.Type.u4, ov.Shape([rows, 2, 4]))
    held.data[:] = DRAW.integers(0, 256, rows * 8 // 2)
    weights = op.convert(op.constant(held), "f32")
    zero = op.convert(op.constant(DRAW.integers(0, 16, (rows, 2, 1)).astype(np.uint8)), "f32")
    scale = op.constant(DRAW.uniform(0.1, 1, (rows, 2, 1)).astype(np.float32))
    return op.reshape(op.multiply(op.subtract(weights, zero), scale), op.constant(np.array([rows, 8])), False)


def model(make: Any, sizes: list[int], transposed: bool = True) -> Any:
    import openvino as ov
    from openvino import opset13 as op

    x = op.parameter([-1, -1, 8], np.float32, "x")
    x.output(0).get_tensor().set_names({"x"})
    hidden = op.relu(x)
    products = [op.matmul(hidden, make(size, ""), False, transposed) for size in sizes]
    return ov.Model([op.result(op.tanh(each)) for each in products], [x])


def run(graph: Any, x: np.ndarray) -> list[np.ndarray]:
    import openvino as ov

    compiled = ov.Core().compile_model(graph, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return [np.array(value) for value in compiled({"x": x}).values()]
