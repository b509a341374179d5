"""Finds a metric by its name, and the one that fits a model's output."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from hasten.errors import InvalidInput
from hasten.isolate import resolve
from hasten.model import Signature
from hasten.workload import Metric

if TYPE_CHECKING:
    import numpy as np

    from hasten.measure.metrics import Formula


def metric(name: str) -> Metric:
    """The metric called `name`: a name of hasten's, or `module:function` from (outputs, labels) to a number.

    A function of the user's is better when higher unless it has an attribute `higher_is_better = False`. It gets the
    chosen output of every sample, samples first (a list where sizes differ), or a dict of them where the model has
    several outputs and none was chosen; labels are None without labels. An attribute `per_sample`, a function of the
    same arguments whose mean the metric is, spares the bootstrap from calling the metric again; it may leave samples
    out, as a probe does with those that it is fitted on. Raises `InvalidInput` for an unknown name.
    """
    if ":" in name:
        function = resolve(name)
        higher = bool(getattr(function, "higher_is_better", True))
        return Metric(name, higher, function, getattr(function, "per_sample", None))
    found, kind = formula(name)
    return Metric(
        name,
        found.higher_is_better,
        lambda outputs, labels: found.final(found.reduce(outputs, labels), labels),
        found.reduce if found.mean else None,
        kind,
    )


def names() -> tuple[str, ...]:
    """Every metric that hasten has, those against labels first."""
    from hasten.measure.fidelity import FIDELITIES
    from hasten.measure.metrics import FORMULAS

    return (*FORMULAS, *FIDELITIES)


def formula(name: str) -> tuple[Formula, Literal["labels", "fidelity"]]:
    from hasten.measure.fidelity import FIDELITIES
    from hasten.measure.metrics import FORMULAS

    if name in FORMULAS:
        return FORMULAS[name], "labels"
    if name in FIDELITIES:
        return FIDELITIES[name], "fidelity"
    raise InvalidInput(f"there is no metric called {name!r}", f"use module:function or one of: {', '.join(names())}")


def default_metric(
    signature: Signature, has_labels: bool, output: np.ndarray | Mapping[str, np.ndarray], labels: Any = None
) -> str:
    """The metric that fits one sample's `output` (the first output of the signature, of a dict of them).

    With labels: accuracy, or rmse where the labels (if given) are not whole numbers, or are more than 0 and 1 and the
    output is one number; but cosine for what is surely an embedding, as its name tells: no label can be compared with
    that. Without labels: top1-agreement for class
    scores, cosine for embeddings, normalised-error for the rest. Class scores are told by the output's name, by summing
    to one, or by a size that no embedding has; this is a guess, and `--metric` overrides it.
    """
    import numpy as np

    name = signature.outputs[0].name if signature.outputs else ""
    if isinstance(output, Mapping):
        name = name if name in output else next(iter(output))
        output = output[name]
    values = np.asarray(output)
    embeds = any(word in name.casefold() for word in ("embed", "pooled", "pooler", "feature", "hidden", "vector"))
    if has_labels and not (embeds and values.dtype.kind == "f" and values.size > 1):
        return "rmse" if labels is not None and _measured(np.asarray(labels), values) else "accuracy"
    if values.dtype.kind != "f":
        return "top1-agreement"
    if values.ndim == 0 or values.shape[-1] == 1:
        return "normalised-error"
    words = name.casefold()
    rows = values.reshape(-1, values.shape[-1]).astype(np.float64)
    if embeds:
        return "cosine"
    if any(word in words for word in ("logit", "prob", "softmax", "class")):
        return "top1-agreement"
    if (rows >= 0).all() and np.allclose(rows.sum(axis=1), 1, atol=1e-3):
        return "top1-agreement"
    if values.ndim > 1:
        return "normalised-error"
    unit = math.isclose(float(np.linalg.norm(rows)), 1, abs_tol=1e-3)
    return "cosine" if unit or (values.size >= 64 and values.size % 32 == 0) else "top1-agreement"


def _measured(labels: np.ndarray, output: np.ndarray) -> bool:
    """Whether labels are quantities, and no classes of what gives `output` for a sample."""
    import numpy as np

    if labels.dtype.kind not in "iubf":
        return False
    if labels.dtype.kind == "f" and not np.all(labels == np.round(labels)):
        return True
    return output.dtype.kind == "f" and output.size == 1 and labels.ndim == 1 and not np.isin(labels, (0, 1)).all()
