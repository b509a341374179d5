"""Rows that nothing reads are not computed: a selection is made before the work whose results it throws away.

A classifier reads the first token of its encoder alone, and a forecaster the last step. The last layer still computes
all of them: queries, attention, the output projection and the feed-forward block. The selection, a Gather of fixed
rows, moves up through whatever works on each row by itself, until it meets something that reads the other rows too,
such as the keys and values of attention.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnxscript import ir
from onnxscript.rewriter import RewriteRuleClassBase, RewriteRuleSet
from onnxscript.rewriter._basics import MatchResult

from hasten.levers.rewrite_probe import Shapes

Rule: Any = RewriteRuleClassBase
"""Its methods take what a pattern names, which no type checker can follow."""

ELEMENTWISE = frozenset(
    """
Abs Add And Cast Ceil Clip Cos Div Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual HardSigmoid HardSwish Identity
IsInf IsNaN LeakyRelu Less LessOrEqual Log Max Min Mish Mod Mul Neg Not Or PRelu Pow Reciprocal Relu Round Selu Sigmoid
Sign Sin Softplus Softsign Sqrt Sub Sum Swish Tanh ThresholdedRelu Where Xor
""".split()  # noqa: SIM905
)
BY_AXIS = frozenset({"Softmax", "LogSoftmax", "LayerNormalization", "RMSNormalization", "LpNormalization"})
REDUCES = frozenset({"ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceSumSquare"})


def rules(shapes: Shapes) -> RewriteRuleSet:
    return RewriteRuleSet([Earlier.rule(shapes)])


class Earlier(Rule):
    """Gather(f(x), rows) is f(Gather(x, rows)) where f works on each row by itself."""

    def __init__(self, shapes: Shapes) -> None:
        super().__init__("rows", remove_nodes=False)
        self.shapes = shapes

    def pattern(self, op: Any, value: Any, rows: Any) -> Any:
        return op.Gather(value, rows, _allow_other_attributes=True, _outputs=["taken"])

    def check(self, context: Any, value: Any, rows: Any, taken: Any, **_: Any) -> MatchResult:
        result = MatchResult()
        maker, selection = value.producer(), _selection(taken.producer(), self.shapes)
        if maker is None or maker.domain not in ("", "ai.onnx") or selection is None:
            return result.fail("nothing is selected from a computed value")
        axis, picked = selection
        sizes = self.shapes.sizes(value, axis)
        if axis == 0 or not sizes or max(sizes) <= picked.size:
            return result.fail("the selection leaves nothing out")
        if value.is_graph_output() or len(maker.outputs) > 1:
            return result.fail("the whole value is read")
        for user, place in value.uses():
            same = _selection(user, self.shapes) if place == 0 else None
            if same is None or same[0] != axis or not np.array_equal(same[1], picked):
                return result.fail("others read the whole value")
        if _moved(maker, axis, self.shapes, lambda each, _: each, None, picked.size) is None:
            return result.fail(f"{maker.op_type} mixes rows")
        return result

    def rewrite(self, op: Any, value: Any, rows: Any, taken: Any, **_: Any) -> Any:
        selection = _selection(taken.producer(), self.shapes)
        assert selection is not None
        axis, picked = selection
        kept = op.Constant(value=ir.tensor(picked.reshape(-1).astype(np.int64)))
        moved = _moved(
            value.producer(), axis, self.shapes, lambda each, at: op.Gather(each, kept, axis=at), op, picked.size
        )
        if picked.ndim == 0:
            return op.Squeeze(moved, op.Constant(value=ir.tensor(np.array([axis], np.int64))))
        return moved


def _selection(node: Any, shapes: Shapes) -> tuple[int, np.ndarray] | None:
    """Which rows of which axis a Gather takes, where these are fixed and at most a list."""
    if node is None or node.op_type != "Gather" or node.domain not in ("", "ai.onnx"):
        return None
    constant, rank = node.inputs[1].const_value, shapes.rank(node.inputs[0])
    if constant is None or rank is None or len(constant.shape) > 1:
        return None
    return node.attributes.get_int("axis", 0) % rank, constant.numpy()


Take = Callable[[Any, int], Any]


def _moved(node: Any, axis: int, shapes: Shapes, take: Take, op: Any, count: int) -> Any:
    """`node` computed for the rows that `take(value, axis)` gives of its inputs; None where it mixes rows.

    Without `op` nothing is made, and what comes back only says whether it could be.
    """
    kind, inputs = node.op_type, list(node.inputs)
    rank = shapes.rank(node.outputs[0])
    if rank is None:
        return None
    if kind in ELEMENTWISE:
        found = [_aligned(value, node, axis, rank, shapes, take) for value in inputs]
        return None if any(each is False for each in found) else _again(op, node, found)
    if kind == "MatMul":
        return _matmul(node, axis, rank, shapes, take, op)
    if kind in BY_AXIS:
        if node.attributes.get_int("axis", -1) % rank != rank - 1 or axis == rank - 1 or len(node.outputs) > 1:
            return None
        return _again(op, node, [take(inputs[0], axis), *inputs[1:]])
    if kind in REDUCES:
        over = _axes(node)
        if not over or axis in {each % rank for each in over} or not node.attributes.get_int("keepdims", 1):
            return None
        return _again(op, node, [take(inputs[0], axis), *inputs[1:]])
    if kind == "Transpose":
        order = list(node.attributes["perm"].as_ints()) if "perm" in node.attributes else list(range(rank))[::-1]
        return _again(op, node, [take(inputs[0], order[axis])])
    if kind == "Reshape":
        return _reshape(node, axis, shapes, take, op, count)
    return None


def _aligned(value: Any, node: Any, axis: int, rank: int, shapes: Shapes, take: Take) -> Any:
    """The input of an elementwise operator for the rows alone; itself where it is broadcast; False where not known."""
    if value is None:
        return None
    own = shapes.rank(value)
    if own is None:
        return False
    at = axis - (rank - own)
    sizes, out = (shapes.sizes(value, at) if at >= 0 else None), shapes.sizes(node.outputs[0], axis)
    if sizes is None or (set(sizes) == {1} and sizes != out):
        return value
    return take(value, at) if sizes == out else False


def _matmul(node: Any, axis: int, rank: int, shapes: Shapes, take: Take, op: Any) -> Any:
    left, right = node.inputs
    if axis != rank - 2 or (shapes.rank(left) or 0) < 2 or (shapes.rank(right) or 0) < 2:
        return None
    return _again(op, node, [take(left, (shapes.rank(left) or 0) - 2), right])


def _reshape(node: Any, axis: int, shapes: Shapes, take: Take, op: Any, count: int) -> Any:
    """Where the axis keeps its size and its place among the numbers; the other sizes are as they always were."""
    before, after = shapes.of(node.inputs[0]), shapes.of(node.outputs[0])
    if not before or not after or len({len(shape) for shape in before}) > 1:
        return None
    wanted = [_split(shape, axis) for shape in after]
    places = [at for at in range(len(before[0])) if [_split(shape, at) for shape in before] == wanted]
    if not places:
        return None
    target, free = [], 0
    for at in range(len(after[0])):
        sizes = [shape[at] for shape in after]
        if at == axis:
            target.append(count)
        elif len(set(sizes)) == 1:
            target.append(sizes[0])
        elif at < places[0] and sizes == [shape[at] for shape in before]:
            target.append(0)  # as many as there were
        else:
            target.append(-1)
            free += 1
    if free > 1:
        return None
    taken = take(node.inputs[0], places[0])
    return taken if op is None else op.Reshape(taken, op.Constant(value=ir.tensor(np.array(target, np.int64))))


def _split(shape: tuple[int, ...], axis: int) -> tuple[int, int, int]:
    """How many numbers lie before the axis, along it and behind it."""
    return int(np.prod(shape[:axis])), shape[axis], int(np.prod(shape[axis + 1 :]))


def _axes(node: Any) -> list[int] | None:
    """The axes that a reduction is over: an attribute, or since opset 18 (13 for sums) an input."""
    if "axes" in node.attributes:
        return list(node.attributes["axes"].as_ints())
    given = node.inputs[1] if len(node.inputs) > 1 else None
    return None if given is None or given.const_value is None else given.const_value.numpy().reshape(-1).tolist()


def _again(op: Any, node: Any, inputs: list[Any]) -> Any:
    """The same operator on other inputs."""
    if op is None:
        return True
    return getattr(op, node.op_type)(*inputs, **node.attributes)
