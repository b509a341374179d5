"""Groups of operators for the sensitivity table: each heavy operator alone, or blocks of them, at most forty."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MOST = 40
"""One group costs one compilation and one pass over the samples."""


@dataclass(frozen=True)
class Node:
    """One operator of the graph. `heavy` ones do the arithmetic; `touched` ones quantisation changes; `moving` ones

    only move or select data, so that a quantiser before them serves what comes after.
    """

    name: str
    producers: tuple[str, ...]
    heavy: bool
    touched: bool
    moving: bool = False


@dataclass(frozen=True)
class Group:
    """`heavy` are the operators that give it its time; `nodes` all that must stay unquantised for it to be kept."""

    name: str
    heavy: tuple[str, ...]
    nodes: tuple[str, ...]


def groups_of(nodes: Sequence[Node], most: int = MOST) -> tuple[tuple[Group, ...], Mapping[str, str]]:
    """The groups in execution order, and the group that owns each node of the graph.

    A light operator belongs to the last heavy one before it: what is added to a fragile activation must stay with it.
    """
    heavy = [node.name for node in nodes if node.heavy and node.touched]
    if not heavy:
        return (), {}
    blocks = block_names(heavy, most)
    owner: dict[str, str] = {}
    place = {node.name: i for i, node in enumerate(nodes)}
    for node in nodes:
        if node.name in blocks:
            owner[node.name] = blocks[node.name]
            continue
        known = [name for name in node.producers if name in owner]
        owner[node.name] = owner[max(known, key=lambda name: place[name])] if known else blocks[heavy[0]]
    groups = []
    for block in dict.fromkeys(blocks[name] for name in heavy):
        members = tuple(n.name for n in nodes if n.touched and owner[n.name] == block and (n.heavy or not n.moving))
        groups.append(Group(block, tuple(name for name in heavy if blocks[name] == block), members))
    return tuple(groups), owner


def block_names(names: Sequence[str], most: int = MOST) -> dict[str, str]:
    """The block of each name: itself where there are few; else a common path that leaves at most `most` blocks; else

    runs of neighbours.

    >>> block_names(["a/1/x", "a/1/y", "a/2/x"], most=2)
    {'a/1/x': 'a/1', 'a/1/y': 'a/1', 'a/2/x': 'a/2'}
    """
    if len(names) <= most:
        return {name: name for name in names}
    paths = {name: [p for p in re.split(r"[/.]", name) if p] for name in names}
    for depth in range(max(len(path) for path in paths.values()) - 1, 0, -1):
        found = {name: _prefix(name, depth) for name in names}
        if len(set(found.values())) <= most:
            if len(set(found.values())) >= max(2, most // 6):
                return found
            break
    width = -(-len(names) // most)
    return {name: names[i - i % width] for i, name in enumerate(names)}


def _prefix(name: str, depth: int) -> str:
    """The first `depth` parts of a path, separators as written."""
    parts = re.findall(r"[/.]*[^/.]+", name)
    return "".join(parts[:depth])
