"""Counts the floating-point operations and the bytes of one ONNX operator from the shapes around it.

A multiply-add is two operations; a comparison, an exponential or a square root is one. Integer arithmetic of quantised
operators counts the same. Operators that only move data, and those that are not known here, count zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hasten.formats.dtypes import nbytes

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Known:
    """What is known of a value: element type, shape, the value itself where it is small, and whether it is constant."""

    dtype: str | None = None
    shape: Shape | None = None
    value: Any = None
    weight: bool = False

    @property
    def nbytes(self) -> int:
        return 0 if self.shape is None or self.dtype is None else nbytes(self.dtype, math.prod(self.shape))


def _table(*rows: tuple[int, str]) -> dict[str, int]:
    return {kind: cost for cost, kinds in rows for kind in kinds.split()}


PER_OUTPUT = _table(
    (1, "Add Sub Mul Div Pow Mod Neg Abs Sqrt Reciprocal Exp Log Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh"),
    (1, "Atanh Tanh Sigmoid Erf Relu Clip Floor Ceil Round Sign Equal Greater GreaterOrEqual Less LessOrEqual And Or"),
    (1, "Xor Not Where ThresholdedRelu CumSum CumProd IsNaN IsInf BitShift BitwiseAnd BitwiseOr BitwiseXor BitwiseNot"),
    (2, "LeakyRelu PRelu Swish Silu BatchNormalization Shrink QuickGelu"),
    (3, "QuantizeLinear DequantizeLinear HardSigmoid Elu Softplus Softsign LpNormalization"),
    (4, "HardSwish Mish Selu Celu DynamicQuantizeLinear RMSNormalization SimplifiedLayerNormalization"),
    (4, "RotaryEmbedding QLinearAdd QLinearMul QLinearSigmoid QLinearLeakyRelu"),
    (5, "Softmax LogSoftmax Hardmax QLinearSoftmax SkipSimplifiedLayerNormalization"),
    (7, "LayerNormalization InstanceNormalization GroupNormalization GroupNorm MeanVarianceNormalization"),
    (8, "Gelu FastGelu SkipLayerNormalization EmbedLayerNormalization GridSample"),
    (9, "BiasGelu"),
)
"""Operations for each element of the first output, such as a LayerNormalization's seven: sum, subtract, square, sum,
scale, gain, bias."""

PER_INPUT = _table(
    (1, "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ArgMax ArgMin TopK GlobalAveragePool"),
    (1, "GlobalMaxPool QLinearGlobalAveragePool QLinearReduceMean"),
    (2, "ReduceL2 ReduceSumSquare ReduceLogSum GlobalLpPool"),
    (3, "ReduceLogSumExp"),
)
"""Operations for each element of the first input."""

POOLS = {"MaxPool": 1, "AveragePool": 1, "LpPool": 2, "QLinearAveragePool": 1}
CONVOLUTIONS = {"Conv": 1, "FusedConv": 1, "ConvInteger": 1, "QLinearConv": 3}
"""Where the weight is among the inputs."""

MATMULS = {"MatMul": 1, "FusedMatMul": 1, "MatMulInteger": 1, "MatMulIntegerToFloat": 1, "DynamicQuantizeMatMul": 1,
           "QLinearMatMul": 3, "TransposeMatMul": 1, "GemmFloat8": 1}  # fmt: skip
"""Where the second factor is among the inputs."""

RECURRENT = {"LSTM": 4, "GRU": 3, "RNN": 1}
"""Gates."""

VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout", "Shape", "Size", "Constant"})
"""No bytes: every runtime only looks at the same memory in another way."""

SELECTS = frozenset({"Gather", "GatherElements", "GatherND", "Slice", "EmbedLayerNormalization"})
"""Of their data, only as many bytes as come out are read: a lookup does not read the whole table."""


def flops(kind: str, attributes: Mapping[str, Any], inputs: Sequence[Known], outputs: Sequence[Known]) -> int:
    """Operations of one run; 0 where a shape that the formula needs is not known."""
    try:
        return _flops(kind, attributes, [known.shape for known in inputs], [known.shape for known in outputs])
    except (_Unknown, IndexError):
        return 0


def traffic(kind: str, inputs: Sequence[Known], outputs: Sequence[Known]) -> tuple[int, int]:
    """Bytes read and written, and those of them that are weights."""
    if kind in VIEWS:
        return 0, 0
    written = sum(known.nbytes for known in outputs)
    total, weights = written, 0
    for known in inputs:
        read = min(known.nbytes, written) if kind in SELECTS else known.nbytes
        total += read
        weights += read if known.weight else 0
    return total, weights


class _Unknown(Exception):
    pass


def _size(shape: Shape | None) -> int:
    return math.prod(_known(shape))


def _known(shape: Shape | None) -> Shape:
    if shape is None:
        raise _Unknown
    return shape


def _flops(kind: str, attributes: Mapping[str, Any], inputs: list[Shape | None], outputs: list[Shape | None]) -> int:
    if kind in PER_OUTPUT:
        return PER_OUTPUT[kind] * _size(outputs[0])
    if kind in PER_INPUT:
        return PER_INPUT[kind] * _size(inputs[0])
    if kind in POOLS:
        return POOLS[kind] * _size(outputs[0]) * math.prod(attributes.get("kernel_shape", ()))
    if kind in CONVOLUTIONS:
        at = CONVOLUTIONS[kind]
        bias = {"QLinearConv": 8, "ConvInteger": None}.get(kind, 2)
        return 2 * _size(outputs[0]) * math.prod(_known(inputs[at])[1:]) + _bias(inputs, bias, outputs)
    if kind == "ConvTranspose":
        return 2 * _size(inputs[0]) * math.prod(_known(inputs[1])[1:]) + _bias(inputs, 2, outputs)
    if kind in MATMULS:
        return _matmul(attributes, _known(inputs[0]), _known(inputs[MATMULS[kind]]))
    if kind == "MatMulNBits":
        return 2 * _size(outputs[0]) * int(attributes.get("K", 0))
    if kind in ("Gemm", "QGemm"):
        left = _known(inputs[0])
        inner = left[0] if attributes.get("transA") else left[1]
        return 2 * _size(outputs[0]) * inner + _bias(inputs, 2 if kind == "Gemm" else 6, outputs)
    if kind in RECURRENT:
        return _recurrent(RECURRENT[kind], attributes, _known(inputs[0]), _known(inputs[1]), _known(inputs[2]))
    if kind == "Einsum":
        return _einsum(attributes.get("equation", ""), [_known(shape) for shape in inputs])
    if kind in ("Sum", "Mean", "Max", "Min"):
        return max(0, len(inputs) - (kind != "Mean")) * _size(outputs[0])
    if kind in ("Attention", "QAttention", "MultiHeadAttention", "GroupQueryAttention"):
        return _attention(kind, attributes, inputs)
    if kind in ("Resize", "Upsample"):
        around = {"linear": 4, "cubic": 16}.get(attributes.get("mode", "nearest"), 0)
        return 2 * around * _size(outputs[0])
    if kind == "LRN":
        return (2 * int(attributes.get("size", 1)) + 3) * _size(outputs[0])
    if kind in ("DFT", "STFT"):
        length = _known(outputs[0])[-2] if len(_known(outputs[0])) > 1 else 1
        return math.ceil(2.5 * _size(outputs[0]) * math.log2(max(length, 2)))
    return 0


def _bias(inputs: list[Shape | None], at: int | None, outputs: list[Shape | None]) -> int:
    return _size(outputs[0]) if at is not None and len(inputs) > at and inputs[at] is not None else 0


def _matmul(attributes: Mapping[str, Any], left: Shape, right: Shape) -> int:
    rows, inner = (1, left[0]) if len(left) == 1 else left[-2:]
    if attributes.get("transA") and len(left) > 1:
        rows, inner = inner, rows
    columns = 1 if len(right) == 1 else right[-2] if attributes.get("transB") else right[-1]
    batch = _broadcast(left[:-2], right[:-2])
    return 2 * batch * rows * inner * columns


def _broadcast(left: Shape, right: Shape) -> int:
    width = max(len(left), len(right))
    left, right = (1,) * (width - len(left)) + left, (1,) * (width - len(right)) + right
    return math.prod(b if a == 1 else a for a, b in zip(left, right, strict=True))


def _recurrent(gates: int, attributes: Mapping[str, Any], data: Shape, weight: Shape, hidden: Shape) -> int:
    """Both products of each step, then bias, activation and a combination for each gate."""
    steps = data[0] * data[1]
    return steps * (2 * (math.prod(weight) + math.prod(hidden)) + (3 * gates + 2) * hidden[0] * hidden[2])


def _einsum(equation: str, shapes: Sequence[Shape]) -> int:
    terms = equation.replace(" ", "").partition("->")[0].split(",")
    if "..." in equation or len(terms) != len(shapes):
        raise _Unknown
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        sizes.update(zip(term, shape, strict=False))
    return 2 * math.prod(sizes.values()) * max(1, len(shapes) - 1)


def _attention(kind: str, attributes: Mapping[str, Any], inputs: list[Shape | None]) -> int:
    """Scores and their product with the values (4 b h s t d), and a softmax (5 b h s t).

    com.microsoft's `Attention` projects its input as well, by a weight [width, 3 x width].
    """
    query = _known(inputs[0])
    heads = int(attributes.get("q_num_heads") or attributes.get("num_heads") or 1)
    if kind in ("Attention", "QAttention") and "num_heads" in attributes:
        weight = _known(inputs[1])
        width = weight[1] // 3
        batch, length = query[0], query[1]
        projection = 2 * batch * length * math.prod(weight)
        return projection + batch * length * length * (4 * width + 5 * heads)
    key = inputs[1] if len(inputs) > 1 and inputs[1] is not None else query
    if len(query) == 4:
        batch, heads, length, head = query
        other = key[2]
    else:
        batch, length, width = query
        head, other = width // heads, key[1]
    past = inputs[4] if kind == "Attention" and len(inputs) > 4 else None
    if past is not None and len(past) == 4:
        other += past[2]
    return batch * heads * length * other * (4 * head + 5)
