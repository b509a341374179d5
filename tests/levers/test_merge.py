"""Products of one input in one: the same numbers, from weights of any kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hasten.levers.merge import merged

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


@pytest.mark.parametrize("make", [plain, packed])
@pytest.mark.parametrize("sizes", [[4, 4], [6, 2, 2]])
def test_the_same_numbers_from_one_product(make: Any, sizes: list[int]) -> None:
    graph = model(make, sizes)
    x = DRAW.normal(size=(2, 3, 8)).astype(np.float32)
    before = run(graph, x)
    assert merged(graph) == 1
    kinds = [op.get_type_name() for op in graph.get_ordered_ops()]
    assert kinds.count("MatMul") == 1
    for found, wanted in zip(run(graph, x), before, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    assert merged(graph) == 0


def test_what_is_made_in_different_ways_stays_apart() -> None:
    ways = iter([plain, packed])
    graph = model(lambda rows, kind: next(ways)(rows, kind), [4, 4])
    assert merged(graph) == 0


def test_weights_that_lie_the_other_way_stay_apart() -> None:
    from openvino import opset13 as op

    graph = model(lambda rows, kind: op.constant(DRAW.normal(size=(8, rows)).astype(np.float32)), [4, 4], False)
    assert merged(graph) == 0


def test_merged_weights_are_held_and_not_only_pointed_to() -> None:
    graph = model(packed, [512, 512])
    x = DRAW.normal(size=(1, 2, 8)).astype(np.float32)
    before = run(graph, x)
    merged(graph)
    for _ in range(50):  # what was freed is written over
        np.full(1 << 14, 255, np.uint8)
    for found, wanted in zip(run(graph, x), before, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-4)
