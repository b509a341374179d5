"""How close a variant's outputs are to the original model's, where there are no labels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from hasten.measure.metrics import Array, Formula, word_error_rate, word_rows

ROUNDING = 1e-4
"""Outputs that differ by less, relative to the largest value of a sample's output, differ by rounding: what reordering
float32 sums does to a deep network."""


def _pairs(outputs: Any, reference: Any) -> Iterator[tuple[Array, Array]]:
    for number, (ours, theirs) in enumerate(zip(outputs, reference, strict=True)):
        a, b = np.asarray(ours), np.asarray(theirs)
        if a.shape != b.shape:
            raise ValueError(f"sample {number} has an output of shape {a.shape}, and the original model's is {b.shape}")
        yield a, b


def _numbers(a: Array, b: Array) -> tuple[Array, Array]:
    """Both as flat float64; where both hold the same infinity or NaN (a mask), it counts as agreement."""
    x, y = a.astype(np.float64).reshape(-1), b.astype(np.float64).reshape(-1)
    masked = ~np.isfinite(x) & ~np.isfinite(y)
    return np.where(masked, 0.0, x), np.where(masked, 0.0, y)


def _agreement(outputs: Any, reference: Any) -> Array:
    """The share of a sample's positions with the same top class along the last axis; 0 or 1 for one row of scores.

    Outputs that are no scores (integers, text, a single number) agree where they are equal.
    """
    rows = []
    for a, b in _pairs(outputs, reference):
        scores = a.dtype.kind == "f" and a.ndim >= 1 and a.shape[-1] > 1
        same = a.argmax(axis=-1) == b.argmax(axis=-1) if scores else a == b
        rows.append(np.mean(same))
    return np.array(rows, np.float64)


def _cosine(outputs: Any, reference: Any) -> Array:
    """The cosine of each sample's flattened output with the original's; 1 where both are zero, 0 where one is."""
    rows = []
    for a, b in _pairs(outputs, reference):
        x, y = _numbers(a, b)
        size = float(np.linalg.norm(x) * np.linalg.norm(y))
        rows.append(min(1.0, max(-1.0, float(x @ y) / size)) if size else float(not x.any() and not y.any()))
    return np.array(rows, np.float64)


def _error(outputs: Any, reference: Any) -> Array:
    """The norm of each sample's difference over the norm of the original's output."""
    rows = []
    for a, b in _pairs(outputs, reference):
        x, y = _numbers(a, b)
        size, off = float(np.linalg.norm(y)), float(np.linalg.norm(x - y))
        rows.append(off / size if size else (0.0 if off == 0 else 1.0))
    return np.array(rows, np.float64)


def _mean(rows: Array, reference: Any) -> float:
    return float(rows.mean())


FIDELITIES = {
    formula.name: formula
    for formula in (
        Formula("top1-agreement", _agreement, _mean, mean=True),
        Formula("cosine", _cosine, _mean, mean=True, bounds=(-1.0, 1.0)),
        Formula("normalised-error", _error, _mean, higher_is_better=False, mean=True, bounds=(0.0, float("inf"))),
        Formula("wer-to-original", word_rows, word_error_rate, False, bounds=(0.0, float("inf"))),
    )
}
"""By name; the reference stands where the labels would. The original scores 1, 1, 0 and 0 against itself."""

ITSELF = {"top1-agreement": 1.0, "cosine": 1.0, "normalised-error": 0.0, "wer-to-original": 0.0}


def equal_to_rounding(outputs: Any, reference: Any) -> bool:
    """Whether two variants compute the same numbers: every sample's output differs by no more than `ROUNDING`."""
    for ours, theirs in zip(outputs, reference, strict=True):
        a, b = np.asarray(ours), np.asarray(theirs)
        if a.shape != b.shape:
            return False
        if a.dtype.kind != "f":
            if not np.array_equal(a, b):
                return False
            continue
        if not np.array_equal(np.isfinite(a), np.isfinite(b)):
            return False
        x, y = _numbers(a, b)
        if x.size and float(np.abs(x - y).max()) > ROUNDING * float(np.abs(y).max()):
            return False
    return True


def broken_samples(outputs: Any, reference: Any) -> int:
    """How many samples hold a NaN or an infinity where the original model's output is finite throughout."""
    count = 0
    for ours, theirs in zip(outputs, reference, strict=True):
        a, b = np.asarray(ours), np.asarray(theirs)
        if a.dtype.kind == "f" and b.dtype.kind == "f" and not np.isfinite(a).all() and np.isfinite(b).all():
            count += 1
    return count
