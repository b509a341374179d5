"""Joins the times that a runtime reports with the arithmetic of the model's own operators."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hasten.diagnose.kinds import FREE, HEAVY, MOVEMENT, QUANTISED
from hasten.model import Operator
from hasten.runtimes.base import OperatorTime

NEAR = 6
"""How many operators lie between a convolution and the end of what is folded into it, at most."""


@dataclass(frozen=True)
class Joined:
    """One executed operator with the model's operators that it stands for (none where the runtime inserted it)."""

    time: OperatorTime
    operators: tuple[Operator, ...] = ()

    @property
    def kind(self) -> str:
        """The model's own word for the heaviest operator inside; the runtime's where nothing was matched."""
        if not self.operators:
            return self.time.kind
        return max(self.operators, key=lambda o: (o.flops, o.kind in HEAVY, o.bytes)).kind

    @property
    def flops(self) -> int | None:
        return sum(o.flops for o in self.operators) if self.operators else None

    @property
    def bytes(self) -> int | None:
        """What the fused operators move: all their weights, and the largest member's other tensors.

        What passes between fused operators never leaves the registers, and a chain such as convolution, bias and
        activation reads and writes what its largest member does.
        """
        if not self.operators:
            return None
        return sum(o.weight_bytes for o in self.operators) + max(o.bytes - o.weight_bytes for o in self.operators)

    @property
    def weight_bytes(self) -> int:
        return sum(o.weight_bytes for o in self.operators)

    @property
    def quantised(self) -> bool:
        return any(o.kind in QUANTISED for o in self.operators)


def join(times: Sequence[OperatorTime], operators: Sequence[Operator]) -> tuple[Joined, ...]:
    """Give each of `operators` to the one of `times` that executed it, by name, by tensor, and last by place.

    An operator that several times name goes to the longest of them, but never to one that only moves data, unless it
    moves data itself. Operators that nobody names were fused away or folded, and are left out.
    """
    times = [time for time in times if time.kind not in FREE]
    index = _index(operators)
    owner: dict[int, int] = {}
    for position, time in enumerate(times):
        for name in (*time.sources, time.name):
            for found in _find(name, index):
                if time.kind in MOVEMENT and operators[found].kind not in MOVEMENT:
                    continue
                if found not in owner or _rank(time, operators[found]) > _rank(times[owner[found]], operators[found]):
                    owner[found] = position
    _by_neighbour(times, operators, owner)
    members: list[list[Operator]] = [[] for _ in times]
    for found, position in sorted(owner.items()):
        members[position].append(operators[found])
    return tuple(Joined(time, tuple(group)) for time, group in zip(times, members, strict=True))


def coverage(joined: Iterable[Joined], operators: Sequence[Operator]) -> float:
    """The share of the model's arithmetic that was found in the runtime's list (1 for a model without any)."""
    total = sum(o.flops for o in operators)
    return sum(row.flops or 0 for row in joined) / total if total else 1.0


def _rank(time: OperatorTime, operator: Operator) -> tuple[bool, float]:
    """A heavy operator belongs to a kernel that looks heavy; among equals the longest time wins."""
    return (time.kind in HEAVY) == (operator.kind in HEAVY), time.microseconds


def _index(operators: Sequence[Operator]) -> Mapping[str, tuple[int, ...]]:
    index: dict[str, list[int]] = {}
    for position, operator in enumerate(operators):
        for key in dict.fromkeys(filter(None, (operator.name, *operator.outputs))):
            index.setdefault(key, []).append(position)
    return {key: tuple(positions) for key, positions in index.items()}


def _find(name: str, index: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """Exact first; then without a port number; then without what runtimes append when they split an operator."""
    for candidate in (
        name,
        re.sub(r"(:|\.)\d+$", "", name),
        re.sub(r"(/WithoutBiases|/fq_\w+|_fused\w*|_nchwc)$", "", name),
    ):
        if candidate in index:
            return index[candidate]
    shorter = name
    while "/" in shorter:
        shorter = shorter.rpartition("/")[0]
        if shorter and shorter in index:
            return index[shorter]
    return ()


def _by_neighbour(times: Sequence[OperatorTime], operators: Sequence[Operator], owner: dict[int, int]) -> None:
    """Give a heavy kernel that was matched only with what follows it the heavy operator just before.

    OpenVINO folds a convolution's batch normalisation into new weights and keeps the name of the addition alone; the
    operators come in the model's order, so the convolution is the nearest one before that nobody has claimed.
    """
    claimed: dict[int, list[int]] = {}
    for found, position in owner.items():
        claimed.setdefault(position, []).append(found)
    for position, time in enumerate(times):
        mine = claimed.get(position, [])
        if time.kind not in HEAVY or not mine or any(operators[i].kind in HEAVY for i in mine):
            continue
        for before in range(min(mine) - 1, max(-1, min(mine) - 1 - NEAR), -1):
            if operators[before].kind in HEAVY:
                if before not in owner and _family(operators[before].kind) == _family(time.kind):
                    owner[before] = position
                break


def _family(kind: str) -> str:
    """Convolutions, recurrent cells or matrix products: kinds that can stand for each other."""
    if "conv" in kind.lower():
        return "convolution"
    return "recurrent" if any(mark in kind for mark in ("LSTM", "GRU", "RNN")) else "product"
