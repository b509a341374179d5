"""Products of one input in one: the same numbers, from weights of any kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from packed_weights import DRAW, model, packed, plain, run

from hasten.levers.merge import merged
from hasten.levers.weight_only import unpacked


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


def test_packed_weights_unpack_to_the_same_numbers() -> None:
    graph = model(packed, [4, 8])
    x = DRAW.normal(size=(1, 2, 8)).astype(np.float32)
    before = run(graph, x)
    kinds = [op.get_element_type().get_type_name() for op in unpacked(graph).get_ordered_ops()]
    assert "u4" not in kinds
    for found, wanted in zip(run(graph, x), before, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=2e-2)  # fp16 holds them
