"""How many bytes a model needs, on paper."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from hasten.measurement import Figure
from hasten.model import Operator

BYTES_PER_ELEMENT = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "int8": 1.0, "int4": 0.5}


def weights_bytes(parameters: int, precision: str = "fp32") -> Figure:
    """Bytes of the weights at `precision` (fp32, bf16, fp16, int8, int4). Scales and zero points are left out."""
    return Figure(
        parameters * BYTES_PER_ELEMENT[precision],
        "B",
        f"estimated: {parameters} parameters x {BYTES_PER_ELEMENT[precision]:g} bytes",
    )


def activations_bytes(operators: Sequence[Operator], precision: str = "fp32") -> Figure:
    """Bytes of activations alive at once: the two largest neighbouring outputs of the operators, in their order.

    Exact for a chain, where an operator's input and output are alive together; a network with long branches keeps more,
    at most `all_activations_bytes`. Operators whose output shape is unknown count as nothing.
    """
    sizes = _sizes(operators, precision)
    pairs = zip(sizes, sizes[1:] or [0.0], strict=False)
    alive = max((first + second for first, second in pairs), default=0.0)
    return Figure(alive, "B", "estimated: the two largest neighbouring activations")


def all_activations_bytes(operators: Iterable[Operator], precision: str = "fp32") -> Figure:
    """Bytes of every operator's output together: the upper bound, and what training without recomputation keeps."""
    return Figure(sum(_sizes(operators, precision)), "B", "estimated: every operator's output")


def _sizes(operators: Iterable[Operator], precision: str) -> list[float]:
    scale = BYTES_PER_ELEMENT[precision]
    return [prod(op.output_shape) * scale * len(op.outputs or (1,)) if op.output_shape else 0.0 for op in operators]
