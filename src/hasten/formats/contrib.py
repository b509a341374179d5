"""Infers the outputs of ONNX Runtime's own operators, which its optimiser makes and of which onnx knows nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hasten.formats.arithmetic import Known

_SAME_AS_INPUT = frozenset(
    {
        "Gelu",
        "FastGelu",
        "BiasGelu",
        "QuickGelu",
        "SkipLayerNormalization",
        "SkipSimplifiedLayerNormalization",
        "SimplifiedLayerNormalization",
        "LayerNormalization",
        "RotaryEmbedding",
        "GroupNorm",
        "QLinearSigmoid",
        "QLinearLeakyRelu",
        "QLinearSoftmax",
        "MultiHeadAttention",
        "GroupQueryAttention",
    }
)


def as_standard(node: Any) -> Any:
    """`FusedConv` as the `Conv` that it was before an activation (and an addition) joined it; others as they are."""
    if node.op_type != "FusedConv":
        return node
    import onnx

    plain = onnx.NodeProto(op_type="Conv", input=node.input[:3], output=node.output)
    plain.attribute.extend(item for item in node.attribute if not item.name.startswith("activation"))
    return plain


def infer_contrib(node: Any, inputs: Sequence[Known]) -> list[Known]:
    """What `node` gives, in order; nothing is known of what an operator missing here gives."""
    first = inputs[0] if inputs else Known()
    rest = [Known() for _ in node.output[1:]]
    settings = settings_of(node)
    if node.op_type in _SAME_AS_INPUT:
        return [replace(first, value=None), *rest]
    if node.op_type in ("QLinearAdd", "QLinearMul") and len(inputs) > 3:
        return [Known(first.dtype, _broadcast(first.shape, inputs[3].shape)), *rest]
    if node.op_type in ("Attention", "QAttention") and first.shape and len(inputs) > 1 and inputs[1].shape:
        dtype = first.dtype if node.op_type == "Attention" else "float32"
        return [Known(dtype, (*first.shape[:-1], inputs[1].shape[1] // 3)), *rest]
    if node.op_type in ("FusedMatMul", "DynamicQuantizeMatMul", "MatMulIntegerToFloat", "TransposeMatMul"):
        left, right = first.shape, inputs[1].shape if len(inputs) > 1 else None
        if left is None or right is None or len(left) < 2 or len(right) < 2:
            return [Known(), *rest]
        rows = left[-1] if settings.get("transA") else left[-2]
        columns = right[-2] if settings.get("transB") else right[-1]
        batch = _broadcast(left[:-2], right[:-2])
        dtype = first.dtype if node.op_type in ("FusedMatMul", "TransposeMatMul") else "float32"
        return [Known(dtype, None if batch is None else (*batch, rows, columns)), *rest]
    if node.op_type == "MatMulNBits" and first.shape:
        return [Known(first.dtype, (*first.shape[:-1], int(settings.get("N", 0)))), *rest]
    if node.op_type == "EmbedLayerNormalization" and first.shape and len(inputs) > 2 and inputs[2].shape:
        return [Known(inputs[2].dtype, (*first.shape, inputs[2].shape[-1])), *rest]
    return [Known(), *rest]


def _broadcast(left: tuple[int, ...] | None, right: tuple[int, ...] | None) -> tuple[int, ...] | None:
    if left is None or right is None:
        return None
    width = max(len(left), len(right))
    left, right = (1,) * (width - len(left)) + left, (1,) * (width - len(right)) + right
    return tuple(b if a == 1 else a for a, b in zip(left, right, strict=True))


def settings_of(node: Any) -> dict[str, Any]:
    """Attributes that formulas need: numbers, lists of numbers and text."""
    found: dict[str, Any] = {}
    for attribute in node.attribute:
        if attribute.type == 2:
            found[attribute.name] = attribute.i
        elif attribute.type == 7:
            found[attribute.name] = tuple(attribute.ints)
        elif attribute.type == 3:
            found[attribute.name] = attribute.s.decode(errors="replace")
    return found
