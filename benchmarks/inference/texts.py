"""MiniLM's texts: 256 of mixed length that are raced, and others of the same kind to optimise and calibrate with."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

RACED = 256
SHORTEST, LONGEST = 5, 200


def samples() -> Iterator[dict[str, np.ndarray]]:
    """The texts to optimise with: all but the raced ones."""
    return islice(_tokens(), RACED, None)


def raced() -> Iterator[dict[str, np.ndarray]]:
    """The 256 texts that are raced, in arrival order."""
    return islice(_tokens(), RACED)


def _tokens() -> Iterator[dict[str, np.ndarray]]:
    from hasten.demo import text

    return (inputs for inputs, _ in text.samples() if SHORTEST <= len(inputs["input_ids"]) <= LONGEST)
