"""Embeddings summed beforehand: a lookup whose number never changes is a row, and a row is added to a table once.

Encoders add up the embeddings of a token, its position and its type. Exported with one type only, the last lookup gives
the same row for every token; it is added to the tokens' table, and a pass over all tokens is gone.
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

MOVES = frozenset(
    {"Expand", "Gather", "GatherElements", "Identity", "Reshape", "Slice", "Squeeze", "Tile", "Unsqueeze"}
)
"""What gives only numbers that its first input holds."""


def rules(shapes: Shapes) -> RewriteRuleSet:
    return RewriteRuleSet([OneRow.rule(shapes), Summed.rule(), SummedBefore.rule()], commute=True)


class OneRow(Rule):
    """A lookup of one number throughout is that row, where it is added to as many as were looked up."""

    def __init__(self, shapes: Shapes) -> None:
        super().__init__("one_row", remove_nodes=False)
        self.shapes = shapes

    def pattern(self, op: Any, other: Any, table: Any, numbers: Any) -> Any:
        return op.Add(
            other, op.Gather(table, numbers, _allow_other_attributes=True, _outputs=["row"]), _outputs=["sum"]
        )

    def check(self, context: Any, other: Any, table: Any, numbers: Any, row: Any, **_: Any) -> MatchResult:
        result = MatchResult()
        if not _is_table(table) or row.producer().attributes.get_int("axis", 0) != 0 or _only(numbers) is None:
            return result.fail("not one row of a table")
        whole = self.shapes.of(other)
        if not whole or whole != self.shapes.of(context.output_values[0]):
            return result.fail("the row sets the size")
        return result

    def rewrite(self, op: Any, other: Any, table: Any, numbers: Any, **_: Any) -> Any:
        number = _only(numbers)
        assert number is not None
        return op.Add(other, op.Constant(value=ir.tensor(table.const_value.numpy()[number])))


class Summed(Rule):
    """Gather(table, numbers) + row is Gather(table + row, numbers)."""

    def __init__(self) -> None:
        super().__init__("summed", remove_nodes=False)

    def pattern(self, op: Any, table: Any, numbers: Any, row: Any) -> Any:
        return op.Add(op.Gather(table, numbers, _allow_other_attributes=True, _outputs=["found"]), row)

    def check(self, context: Any, table: Any, row: Any, found: Any, **_: Any) -> MatchResult:
        result = MatchResult()
        if _is_table(table) and _is_row(row, table) and _is_lookup(found):
            return result
        return result.fail("not a table and a row")

    def rewrite(self, op: Any, table: Any, numbers: Any, row: Any, **_: Any) -> Any:
        return op.Gather(_sum(op, table, row), numbers)


class SummedBefore(Rule):
    """(Gather(table, numbers) + more) + row is Gather(table + row, numbers) + more."""

    def __init__(self) -> None:
        super().__init__("summed_before", remove_nodes=False)

    def pattern(self, op: Any, table: Any, numbers: Any, more: Any, row: Any) -> Any:
        return op.Add(op.Add(op.Gather(table, numbers, _allow_other_attributes=True, _outputs=["found"]), more), row)

    def check(self, context: Any, table: Any, row: Any, found: Any, **_: Any) -> MatchResult:
        result = MatchResult()
        if _is_table(table) and _is_row(row, table) and _is_lookup(found):
            return result
        return result.fail("not a table and a row")

    def rewrite(self, op: Any, table: Any, numbers: Any, more: Any, row: Any, **_: Any) -> Any:
        return op.Add(op.Gather(_sum(op, table, row), numbers), more)


def _is_table(value: Any) -> bool:
    return value.const_value is not None and len(value.const_value.shape) == 2


def _is_row(value: Any, table: Any) -> bool:
    """Whether `value` is constant and as long as the table is wide."""
    known = value.const_value
    return known is not None and known.size == known.shape[-1] == table.const_value.shape[-1] if known else False


def _is_lookup(found: Any) -> bool:
    """Whether rows are looked up, and the result is read once: else the table would be there twice."""
    node = found.producer()
    alone = len(found.uses()) == 1 and len(node.inputs[0].uses()) == 1
    return alone and node.attributes.get_int("axis", 0) == 0


def _sum(op: Any, table: Any, row: Any) -> Any:
    added = table.const_value.numpy() + row.const_value.numpy().reshape(-1)
    return op.initializer(ir.tensor(np.ascontiguousarray(added)), name=f"{table.name}_with_{row.name}")


def _only(value: Any) -> int | None:
    """The one whole number that all of a value's elements are, whatever its shape; None where it is not known."""
    for _ in range(20):
        if value.const_value is not None:
            numbers = np.unique(value.const_value.numpy())
            return int(numbers[0]) if numbers.size == 1 and numbers.dtype.kind in "iu" else None
        maker = value.producer()
        if maker is None:
            return None
        if maker.op_type == "ConstantOfShape":
            filled = maker.attributes.get("value")
            return 0 if filled is None else int(filled.as_tensor().numpy().reshape(-1)[0])
        if maker.op_type not in MOVES:
            return None
        value = maker.inputs[0]
    return None
