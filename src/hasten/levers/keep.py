"""Which nodes a recipe's `keep` patterns mean: shell patterns over node names, whatever a runtime appended to them."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from hasten.errors import InvalidInput

_APPENDED = ("/WithoutBiases",)
"""OpenVINO splits a convolution with bias in two and appends this to the arithmetic's name."""


def plain(name: str) -> str:
    """A node's own name, without what a runtime's reader appended.

    >>> plain("conv1/WithoutBiases")
    'conv1'
    """
    for suffix in _APPENDED:
        name = name.removesuffix(suffix)
    return name


def matching(names: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """The names that one of the patterns matches, in order.

    A pattern that matches nothing is an error, as the recipe would not say what it does.

    >>> matching(["block1/mul", "block2/mul"], ["block1*"])
    ['block1/mul']
    """
    names = list(names)
    unused = [p for p in patterns if not any(fnmatchcase(n, p) or fnmatchcase(plain(n), p) for n in names)]
    if unused:
        some = ", ".join(names[:5])
        raise InvalidInput(
            f"no operator is called {unused[0]!r}, which the recipe keeps at full precision",
            f"remove the pattern, or use the model's own names (such as {some})" if names else "remove the pattern",
        )
    return [n for n in names if any(fnmatchcase(n, p) or fnmatchcase(plain(n), p) for p in patterns)]


def exactly(name: str) -> str:
    """The pattern that matches this name alone."""
    return glob.escape(name)


def patterns_for(kept: Sequence[str], others: Sequence[str], block: str = "") -> list[str]:
    """The shortest honest patterns for `kept`: `block*` when it matches none of `others`, else each name."""
    prefix = exactly(block) + "*"
    if block and all(fnmatchcase(n, prefix) for n in kept) and not any(fnmatchcase(n, prefix) for n in others):
        return [prefix]
    return [exactly(name) for name in kept]
