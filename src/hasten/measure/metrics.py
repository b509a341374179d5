"""Quality metrics against labels, as torchmetrics and scikit-learn define them, in NumPy.

Every metric is a `Formula`: `reduce` turns outputs into one small row for each sample, once; `final` turns rows and
labels into the score, as often as the bootstrap asks. Outputs have samples first; a list holds ragged ones.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

IGNORED_LABEL = -100
"""Positions with this label do not count (PyTorch's convention for padding)."""


@dataclass(frozen=True)
class Formula:
    """`final(reduce(outputs, labels), labels)` is the score. `mean` says that it is the mean of the reduced rows.

    Where `labels` is False the outputs themselves hold the truth.
    `scale` is what one point ("pt") of the metric is: 0.01 for a metric that lives in 0..1 (or -1..1), else 1.
    """

    name: str
    reduce: Callable[[Any, Any], Array]
    final: Callable[[Array, Any], float]
    higher_is_better: bool = True
    mean: bool = False
    scale: float = 0.01
    bounds: tuple[float, float] | None = (0.0, 1.0)
    labels: bool = True


# -- what the model says --------------------------------------------------------------------------------------------


def predicted(outputs: Any, labels: Any) -> Array:
    """The predicted class of each sample (or of each position, for labels with positions).

    Class scores are reduced by argmax along the axis that the labels lack. A single score for each sample is binary:
    0.5 is the threshold where all lie in 0..1, else 0 (logits), as torchmetrics does. Integers and text are classes
    already.
    """
    scores, wanted = _untyped(outputs), np.shape(labels)
    if (scores.dtype.kind == "U") != (np.asarray(labels).dtype.kind == "U"):
        raise ValueError("text cannot be compared with numbers: give labels of the output's own kind")
    if scores.dtype.kind in "iubU" and scores.shape == wanted:
        return scores
    if scores.ndim == len(wanted) + 1:
        if scores.shape[-1] == 1:
            return _binary(scores[..., 0])
        for axis in (-1, 1):
            if np.delete(scores.shape, axis).tolist() == list(wanted):
                _in_range(np.asarray(labels), scores.shape[axis])
                return np.asarray(scores.argmax(axis=axis))
    if scores.shape == wanted and scores.dtype.kind == "f":
        return _binary(scores)
    raise ValueError(f"outputs of shape {scores.shape} are no class scores for labels of shape {wanted}")


def _binary(scores: Array) -> Array:
    probabilities = bool(np.all((scores >= 0) & (scores <= 1)))
    return (scores > (0.5 if probabilities else 0.0)).astype(np.int64)


def _in_range(labels: Array, count: int) -> None:
    counted = labels[labels != IGNORED_LABEL]
    if counted.size and not 0 <= counted.min() <= counted.max() < count:
        raise ValueError(f"labels reach from {counted.min()} to {counted.max()}, and there are {count} classes from 0")


def _untyped(values: Any) -> Array:
    """An array in which Python's strings are NumPy's."""
    array = np.asarray(values)
    return array.astype(str) if array.dtype.kind in "OS" else array


def _classes(labels: Any) -> Array:
    array = _untyped(labels)
    if array.dtype.kind == "U":
        return array
    if array.dtype.kind == "f" and np.all(array == np.round(array)):
        return array.astype(np.int64)
    if array.dtype.kind not in "iub":
        raise ValueError(f"labels of type {array.dtype} are no class numbers")
    return array.astype(np.int64)


def _single(outputs: Any, labels: Any) -> Array:
    """One number for each sample, for correlations."""
    values = np.asarray(outputs, np.float64)
    if values.size != len(np.asarray(labels)):
        raise ValueError(f"outputs of shape {values.shape} are not one number for each of {len(labels)} labels")
    return values.reshape(-1)


def _same(outputs: Any, labels: Any) -> tuple[Array, Array]:
    """Outputs and labels of a regression as (samples, values)."""
    a, b = np.asarray(outputs, np.float64), np.asarray(labels, np.float64)
    if len(a) != len(b) or a.size != b.size:
        raise ValueError(f"outputs of shape {a.shape} do not fit labels of shape {b.shape}")
    return a.reshape(len(a), -1), b.reshape(len(b), -1)


# -- classification -------------------------------------------------------------------------------------------------


def _correct(outputs: Any, labels: Any) -> Array:
    """The share of each sample's positions that are right; 0 or 1 where a sample has one label."""
    if isinstance(outputs, list):  # samples of different lengths: labels may be padded beyond a sample's own
        own = [(one, np.asarray(label)[: len(one)]) for one, label in zip(outputs, labels, strict=True)]
        return np.array([_correct(one[None], label[None])[0] for one, label in own])
    truth = _classes(labels)
    right = predicted(outputs, truth) == truth
    if truth.ndim == 1:
        return np.asarray(right, np.float64)
    right, counts = right.reshape(len(truth), -1), (truth != IGNORED_LABEL).reshape(len(truth), -1)
    return np.asarray((right & counts).sum(axis=1) / np.maximum(counts.sum(axis=1), 1))


def _top5(outputs: Any, labels: Any) -> Array:
    scores, truth = np.asarray(outputs, np.float64), _classes(labels)
    if scores.ndim != 2 or truth.ndim != 1:
        raise ValueError(f"top5 needs one row of class scores for each sample, not outputs of shape {scores.shape}")
    _in_range(truth, scores.shape[1])
    best = np.argsort(-scores, axis=1, kind="stable")[:, :5]
    return np.asarray((best == truth[:, None]).any(axis=1).astype(np.float64))


def _class_rows(outputs: Any, labels: Any) -> Array:
    truth = _classes(labels)
    if truth.ndim != 1:
        raise ValueError("this metric needs one label for each sample")
    return predicted(outputs, truth)


def _counts(rows: Array, labels: Any) -> tuple[Array, Array, Array, Array]:
    """For each class that occurs: true positives, predicted, actual; and the classes."""
    truth = _classes(labels)
    classes, coded = np.unique(np.concatenate([rows, truth]), return_inverse=True)
    said, was = coded[: len(rows)], coded[len(rows) :]
    size = len(classes)
    hit = np.bincount(was[said == was], minlength=size)
    return hit, np.bincount(said, minlength=size), np.bincount(was, minlength=size), classes


def _ratio(numerator: Array, denominator: Array) -> Array:
    """A ratio that is 0 where nothing is counted (scikit-learn's zero_division=0)."""
    return np.asarray(numerator / np.where(denominator == 0, 1, denominator))


def _averaged(per_class: Callable[[Array, Array, Array], Array], average: str) -> Callable[[Array, Any], float]:
    def final(rows: Array, labels: Any) -> float:
        hit, said, was, classes = _counts(rows, labels)
        if average == "micro":
            total = per_class(hit.sum(keepdims=True), said.sum(keepdims=True), was.sum(keepdims=True))
            return float(total[0])
        scores = per_class(hit, said, was)
        if average == "weighted":
            return float((scores * was).sum() / was.sum())
        if average == "binary" and set(classes.tolist()) <= {0, 1}:
            return float(scores[classes == 1][0]) if 1 in classes else 0.0
        return float(scores.mean())

    return final


def _precision(hit: Array, said: Array, was: Array) -> Array:
    return _ratio(hit, said)


def _recall(hit: Array, said: Array, was: Array) -> Array:
    return _ratio(hit, was)


def _f1(hit: Array, said: Array, was: Array) -> Array:
    return _ratio(2 * hit, said + was)


def _balanced(rows: Array, labels: Any) -> float:
    hit, _, was, _ = _counts(rows, labels)
    return float((hit[was > 0] / was[was > 0]).mean())


def _positive_score(outputs: Any, labels: Any) -> Array:
    scores = np.asarray(outputs, np.float64)
    if not set(np.unique(_classes(labels)).tolist()) <= {0, 1}:
        raise ValueError("auc needs labels 0 and 1")
    if scores.ndim == 2 and scores.shape[1] == 2:
        return np.asarray(scores[:, 1] - scores[:, 0])  # the order of probabilities and of logits alike
    return _single(scores, labels)


def _auc(rows: Array, labels: Any) -> float:
    """The chance that a positive scores above a negative, ties counting half (the rank sum of Mann and Whitney)."""
    truth = _classes(labels)
    positive = int((truth == 1).sum())
    negative = len(truth) - positive
    if positive == 0 or negative == 0:
        raise ValueError("auc needs both classes among the labels")
    return float((ranks(rows)[truth == 1].sum() - positive * (positive + 1) / 2) / (positive * negative))


# -- regression and ranking -----------------------------------------------------------------------------------------


def ranks(values: Array) -> Array:
    """Ranks from 1; ties share their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[inverse])


def _pearson(rows: Array, labels: Any) -> float:
    a = rows - rows.mean()
    b = np.asarray(labels, np.float64).reshape(-1)
    b = b - b.mean()
    norm = float(np.sqrt((a @ a) * (b @ b)))
    if norm == 0:
        raise ValueError("a correlation needs outputs and labels that vary")
    return float(np.clip(a @ b / norm, -1, 1))


def _spearman(rows: Array, labels: Any) -> float:
    return _pearson(ranks(rows), ranks(np.asarray(labels, np.float64).reshape(-1)))


def _squared(outputs: Any, labels: Any) -> Array:
    a, b = _same(outputs, labels)
    return np.asarray(((a - b) ** 2).mean(axis=1))


def _absolute(outputs: Any, labels: Any) -> Array:
    a, b = _same(outputs, labels)
    return np.asarray(np.abs(a - b).mean(axis=1))


def _values(outputs: Any, labels: Any) -> Array:
    return _same(outputs, labels)[0]


def _rmse(rows: Array, labels: Any) -> float:
    a, b = _same(rows, labels)
    return float(np.sqrt(((a - b) ** 2).mean(axis=0)).mean())


def _r2(rows: Array, labels: Any) -> float:
    a, b = _same(rows, labels)
    spread = ((b - b.mean(axis=0)) ** 2).sum(axis=0)
    if np.any(spread == 0):
        raise ValueError("r2 needs labels that vary")
    return float((1 - ((a - b) ** 2).sum(axis=0) / spread).mean())


# -- language -------------------------------------------------------------------------------------------------------


def _token_loss(outputs: Any, labels: Any) -> Array:
    """For each sample, the summed negative log-likelihood of its labels and how many count.

    Outputs are logits (positions, vocabulary) and the label at a position is the token wanted there (no shift).
    """
    rows = []
    for logits, label in zip(outputs, labels, strict=True):
        scores = np.asarray(logits, np.float64)
        truth = np.atleast_1d(_classes(label))[: scores.shape[0]]
        if scores.ndim != 2 or len(truth) != len(scores):
            raise ValueError(f"perplexity needs (positions, vocabulary) for each sample, not {scores.shape}")
        kept = truth != IGNORED_LABEL
        _in_range(truth, scores.shape[1])
        top = scores.max(axis=1, keepdims=True)
        normal = top[:, 0] + np.log(np.exp(scores - top).sum(axis=1))
        chosen = scores[np.arange(len(truth)), np.where(kept, truth, 0)]
        rows.append(((normal - chosen)[kept].sum(), kept.sum()))
    return np.array(rows, np.float64).reshape(-1, 2)


def _scored(outputs: Any, labels: Any) -> Array:
    """What a language model's runner says of each text: the summed negative log-likelihood, and of how many tokens."""
    rows = np.asarray(outputs, np.float64)
    if rows.ndim != 2 or rows.shape[1] != 2:
        raise ValueError(f"text-perplexity needs (nats, tokens) for each text, not {rows.shape[1:]}")
    return rows


def _perplexity(rows: Array, labels: Any) -> float:
    if rows[:, 1].sum() == 0:
        raise ValueError("perplexity needs at least one label that counts")
    return float(np.exp(rows[:, 0].sum() / rows[:, 1].sum()))


# -- speech ---------------------------------------------------------------------------------------------------------


def spoken(text: Any) -> list[str]:
    """The words of a text as they are said: lower case, no punctuation but apostrophes and the like within words."""
    plain = unicodedata.normalize("NFKC", str(text)).lower().replace("\u2019", "'")
    return [word for part in re.sub(r"[^\w\s']|_", " ", plain).split() if (word := part.strip("'"))]


def word_errors(said: Sequence[str], wanted: Sequence[str]) -> int:
    """The fewest words to put in, leave out or change that make `said` of `wanted` (Levenshtein's distance)."""
    row = list(range(len(wanted) + 1))
    for number, word in enumerate(said, 1):
        before, row[0] = row[0], number
        for at, other in enumerate(wanted, 1):
            before, row[at] = row[at], min(row[at] + 1, row[at - 1] + 1, before + (word != other))
    return row[-1]


def word_rows(outputs: Any, labels: Any) -> Array:
    """For each text the number of wrong words, and how many words are wanted."""
    pairs = [(spoken(said), spoken(wanted)) for said, wanted in zip(outputs, labels, strict=True)]
    return np.array([(word_errors(said, wanted), len(wanted)) for said, wanted in pairs], np.float64).reshape(-1, 2)


def word_error_rate(rows: Array, labels: Any) -> float:
    if rows[:, 1].sum() == 0:
        raise ValueError("a word error rate needs at least one word that is wanted")
    return float(rows[:, 0].sum() / rows[:, 1].sum())


def _mean(rows: Array, labels: Any) -> float:
    return float(rows.mean())


def _family(name: str, per_class: Callable[[Array, Array, Array], Array]) -> list[Formula]:
    averages = {name: "binary", f"{name}_macro": "macro", f"{name}_micro": "micro", f"{name}_weighted": "weighted"}
    return [Formula(title, _class_rows, _averaged(per_class, average)) for title, average in averages.items()]


_SIGNED = (-1.0, 1.0)
_POSITIVE = (0.0, float("inf"))

FORMULAS = {
    formula.name: formula
    for formula in (
        Formula("accuracy", _correct, _mean, mean=True),
        Formula("top5", _top5, _mean, mean=True),
        *_family("f1", _f1),
        *_family("precision", _precision),
        *_family("recall", _recall),
        Formula("balanced_accuracy", _class_rows, _balanced),
        Formula("auc", _positive_score, _auc),
        Formula("spearman", _single, _spearman, bounds=_SIGNED),
        Formula("pearson", _single, _pearson, bounds=_SIGNED),
        Formula("r2", _values, _r2, bounds=(float("-inf"), 1.0)),
        Formula("mse", _squared, _mean, higher_is_better=False, mean=True, scale=1.0, bounds=_POSITIVE),
        Formula("mae", _absolute, _mean, higher_is_better=False, mean=True, scale=1.0, bounds=_POSITIVE),
        Formula("rmse", _values, _rmse, higher_is_better=False, scale=1.0, bounds=_POSITIVE),
        Formula("perplexity", _token_loss, _perplexity, higher_is_better=False, scale=1.0, bounds=_POSITIVE),
        Formula("wer", word_rows, word_error_rate, higher_is_better=False, bounds=_POSITIVE),
        Formula("text-perplexity", _scored, _perplexity, False, scale=1.0, bounds=_POSITIVE, labels=False),
    )
}
"""By name. f1, precision and recall are scikit-learn's binary score for labels 0 and 1, else the macro mean."""
