"""Attention as runtimes know it: a product, a scale, a mask, Softmax, a product, and nothing else in between.

PyTorch's exporter writes scaled-dot-product attention with a guard against rows that look at nothing (IsNaN and
Where), with half of the scale on either side, and with the keys transposed in three steps. None of it changes the
numbers, but neither OpenVINO nor ONNX Runtime finds its own fused attention in it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnxscript import ir
from onnxscript.rewriter import RewriteRuleClassBase, RewriteRuleSet
from onnxscript.rewriter._basics import MatchResult

from hasten.levers.rewrite_probe import Shapes

Rule: Any = RewriteRuleClassBase
"""Its methods take what a pattern names, which no type checker can follow."""

FARTHEST = float(np.finfo(np.float32).min)


def rules(shapes: Shapes) -> RewriteRuleSet:
    return RewriteRuleSet([Unguarded.rule(), OneTranspose.rule(shapes), OneScale.rule()])


class Unguarded(Rule):
    """Where(IsNaN(p), 0, p) is p, once the mask is finite: then no row's sum, which it is divided by, is 0."""

    def __init__(self) -> None:
        super().__init__("unguarded", remove_nodes=False)

    def pattern(self, op: Any, p: Any, zero: Any) -> Any:
        return op.Where(op.IsNaN(p), zero, p)

    def check(self, context: Any, p: Any, zero: Any, **_: Any) -> MatchResult:
        result = MatchResult()
        maker = p.producer()
        if maker is None or maker.op_type != "Softmax":
            return result.fail("not a Softmax")
        if _number(zero) != 0.0:
            return result.fail("something else than 0 takes the place")
        return result

    def rewrite(self, op: Any, p: Any, zero: Any, **_: Any) -> Any:
        softmax = p.producer()
        return op.Softmax(_finite(op, softmax.inputs[0]), axis=softmax.attributes.get_int("axis", -1))


def _finite(op: Any, scores: Any) -> Any:
    """The scores with a mask that hides by the least finite number instead of minus infinity."""
    added = scores.producer()
    if added is None or added.op_type != "Add":
        return scores
    masks = [value for value in added.inputs if not _is_product(value)]
    if len(masks) != 1:
        return scores
    mask, least = masks[0], op.Constant(value=ir.tensor(np.array(FARTHEST, np.float32)))
    chosen = mask.producer()
    if chosen is not None and chosen.op_type == "Where":
        branches = [least if _number(value) == -np.inf else value for value in chosen.inputs[1:]]
        finite = op.Where(chosen.inputs[0], *branches)
    else:
        finite = op.Max(mask, least)
    return op.Add(*(finite if value is mask else value for value in added.inputs))


def _is_product(value: Any) -> bool:
    """Whether a value is a matrix product, scaled or not."""
    maker = value.producer()
    while maker is not None and maker.op_type in ("Mul", "Div"):
        maker = maker.inputs[0].producer()
    return maker is not None and maker.op_type == "MatMul"


class OneTranspose(Rule):
    """The last two axes of [batch, heads, keys, width] changed over at once, not on [batch * heads, keys, width]."""

    def __init__(self, shapes: Shapes) -> None:
        super().__init__("one_transpose", remove_nodes=False)
        self.shapes = shapes

    def pattern(self, op: Any, x: Any, flat: Any, whole: Any) -> Any:
        return op.Reshape(
            op.Transpose(op.Reshape(x, flat, _allow_other_attributes=True), perm=[0, 2, 1], _outputs=["turned"]),
            whole,
            _allow_other_attributes=True,
            _outputs=["out"],
        )

    def check(self, context: Any, x: Any, out: Any, turned: Any, **_: Any) -> MatchResult:
        result = MatchResult()
        before, after, between = self.shapes.of(x), self.shapes.of(out), self.shapes.of(turned)
        if not before or not after or not between or self.shapes.rank(x) != 4:
            return result.fail("the shapes are not known")
        for old, new, flat in zip(before, after, between, strict=True):
            if new != (old[0], old[1], old[3], old[2]) or flat != (old[0] * old[1], old[3], old[2]):
                return result.fail("heads and keys are mixed")
        return result

    def rewrite(self, op: Any, x: Any, **_: Any) -> Any:
        return op.Transpose(x, perm=[0, 1, 3, 2])


class OneScale(Rule):
    """(a q) (b k) is (a b) (q k): one factor, behind the product."""

    def __init__(self) -> None:
        super().__init__("one_scale", remove_nodes=False)

    def pattern(self, op: Any, q: Any, k: Any, a: Any, b: Any) -> Any:
        return op.MatMul(op.Mul(q, a), op.Mul(k, b))

    def check(self, context: Any, a: Any, b: Any, **_: Any) -> MatchResult:
        result = MatchResult()
        return result if _number(a) is not None and _number(b) is not None else result.fail("not numbers")

    def rewrite(self, op: Any, q: Any, k: Any, a: Any, b: Any, **_: Any) -> Any:
        both = np.array((_number(a) or 0.0) * (_number(b) or 0.0), a.const_value.numpy().dtype)
        return op.Mul(op.MatMul(q, k), op.Constant(value=ir.tensor(both)))


def _number(value: Any) -> float | None:
    """The one number that a constant holds."""
    if value is None or value.const_value is None or value.const_value.size != 1:
        return None
    return float(value.const_value.numpy().reshape(-1)[0])
