"""How far outputs are from the original's, as a loss that adds up over independent errors, and as what a user sees."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np

Kind = Literal["top1", "cosine", "error"]

_CLASSES = ("accuracy", "top1-agreement", "top5", "f1", "precision", "recall", "balanced_accuracy", "auc")
_ANGLES = ("cosine", "spearman", "pearson")
BOUNDLESS = 1e9
"""The loss of outputs that are not numbers, in a form that JSON holds."""

BROKEN = 0.3
"""Above this share of changed answers a model is broken, and the square-root law of small errors is no guide."""


def kind_of(metric: str) -> Kind:
    """What the metric's name says about the outputs."""
    if metric in _CLASSES:
        return "top1"
    return "cosine" if metric in _ANGLES else "error"


def losses(kind: Kind, reference: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> tuple[float, float]:
    """(loss, seen) over all samples.

    top1: the mean squared error of the outputs, centred and relative to their spread; and the share of changed answers.
    cosine: 1 - the mean cosine, twice. error: the mean squared relative error; and its root.
    """
    import numpy as np

    if not all(np.isfinite(o).all() for o in outputs):
        return BOUNDLESS, 1.0
    rows = [(_rows(r), _rows(o)) for r, o in zip(reference, outputs, strict=True)]
    if kind == "cosine":
        cosines = np.concatenate([_cosine(a, b) for a, b in rows])
        loss = float(max(0.0, 1.0 - cosines.mean()))
        return loss, loss
    if kind == "top1" and rows[0][0].shape[-1] > 1:
        # An offset common to all classes changes no answer, so it is taken out.
        error = sum(
            float((((b - b.mean(-1, keepdims=True)) - (a - a.mean(-1, keepdims=True))) ** 2).sum()) for a, b in rows
        )
        spread = sum(float(((a - a.mean(-1, keepdims=True)) ** 2).sum()) for a, _ in rows)
        changed = np.concatenate([a.argmax(-1) != b.argmax(-1) for a, b in rows])
        return error / (spread or 1.0), float(changed.mean())
    error = sum(float(((b - a) ** 2).sum()) for a, b in rows)
    size = sum(float((a**2).sum()) for a, _ in rows) or 1.0
    return error / size, math.sqrt(error / size)


def allowed_loss(kind: Kind, drop: float, pairs: Iterable[tuple[float, float]], samples: int) -> float:
    """The loss at which the seen drop should be `drop` (a fraction).

    `pairs` are measured (loss, seen). An answer changes when the error exceeds the margin, so the share of changed
    answers goes with the error's size, the root of `loss`; the factor is fitted to the pairs of models that still work.
    Where no answer changed, half a one of `samples` is taken to have.
    """
    if kind == "cosine":
        return drop
    if kind == "error":
        return drop**2
    working = [(math.sqrt(loss), seen) for loss, seen in pairs if 0 < loss < BOUNDLESS and seen < BROKEN]
    if not working:
        return 0.0
    pooled = sum(seen for _, seen in working) / sum(root for root, _ in working)
    unseen = 0.5 / max(samples, 1) / max(root for root, _ in working)
    return (drop / max(pooled, unseen)) ** 2


def of_outputs(outputs: Mapping[str, Any], name: str | None) -> np.ndarray:
    """The judged output as float64."""
    import numpy as np

    return np.asarray(outputs[name] if name else next(iter(outputs.values())), dtype=np.float64)


def _rows(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1, array.shape[-1]) if array.ndim else array.reshape(1, 1)


def _cosine(a: np.ndarray, b: np.ndarray) -> Any:
    import numpy as np

    size = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    return np.where(size > 0, (a * b).sum(-1) / np.where(size > 0, size, 1.0), (a == b).all(-1))
