"""Compares an estimator with its ONNX form on samples: the same labels, and numbers equal within float32's rounding."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hasten.errors import Failed, HastenError, InvalidInput
from hasten.intake.columns import Input, entrance, positions
from hasten.intake.conversion import names_of, without
from hasten.intake.estimators import is_booster, is_classifier

ROWS = 1000
TOLERANCE = 1e-4
"""The most that a number may differ, as a share of the largest one of its output: what thousands of trees summed in
float32 stay below."""
MOST_DIFFERENT = 0.01
"""The largest share of samples that may be answered differently. The libraries compare a feature with a split in 64
bits where ONNX has 32, so a sample next to a split can go the other way; a conversion that is wrong is so for more."""
TREES = ("TreeEnsembleClassifier", "TreeEnsembleRegressor")

Batch = Mapping[str, np.ndarray]
Draw = np.ndarray | tuple[float, float]
"""The values that a feature takes, or the middle and the spread of them."""


def check(estimator: Any, inputs: Sequence[Input], proto: Any, batch: Batch, what: str) -> list[str]:
    """Notes on how far the two agree; `Failed` where they do not.

    Scores that are no probabilities and differ are taken out of the graph: converters order and scale them in ways of
    their own, and the labels do not depend on them.
    """
    try:
        wanted = answers(estimator, inputs, batch)
    except HastenError:
        raise
    except Exception as error:  # each library refuses in its own way
        text = " ".join(str(error).split())[:300]
        raise Failed(
            f"this {type(estimator).__name__} does not answer {what} of numbers and text: "
            f"{type(error).__name__}: {text}",
            "if it was fitted with pandas' categories, encode them in the pipeline: OrdinalEncoder, for example",
        ) from None
    found = executed(proto, batch)
    if "scores" in wanted and "scores" not in found:
        del wanted["scores"]
    if "scores" in wanted and apart(wanted["scores"], found["scores"]).max(initial=0.0) > TOLERANCE:
        del wanted["scores"]
        without(proto, "scores")
    different, worst = compared(wanted, found)
    torn = different & tied(wanted)
    wrong, count, total = int((different & ~torn).sum()), int(different.sum()), len(different)
    if wrong > MOST_DIFFERENT * total:
        raise Failed(
            f"the ONNX form of this {type(estimator).__name__} answers {wrong} of {total} {what} differently "
            f"(numbers by up to {worst:.2g} of the largest)",
            "a step of it is converted wrongly: leave it out and preprocess the samples, or update the converter",
            "pip install -U skl2onnx onnxmltools",
        )
    if not count:
        return []
    reasons = ["they lie next to a split of a tree"] if count > torn.sum() else []
    reasons += ["two classes are equally likely"] if torn.any() else []
    return [
        f"{count} of {total} {what} are answered differently by the ONNX form, which computes in 32-bit floating point "
        f"where the original has 64: {' or '.join(reasons)}"
    ]


def compared(wanted: Mapping[str, np.ndarray], found: Batch) -> tuple[np.ndarray, float]:
    """Which rows are answered differently, and by how much numbers differ at most, of the largest of their output."""
    different = np.zeros(len(next(iter(wanted.values()))), bool)
    worst = 0.0
    for name, value in wanted.items():
        if found[name].dtype.kind == "f":
            distance = apart(value, found[name])
            different |= ~(distance <= TOLERANCE)
            worst = max(worst, float(np.max(distance, initial=0.0)))
        else:
            different |= _text(value) != _text(found[name])
    return different, worst


def apart(value: np.ndarray, got: np.ndarray) -> np.ndarray:
    """How far each row of numbers is from the original's, of the largest of all; infinite where one has NaN alone."""
    if value.ndim == 1 and got.ndim == 2 and got.shape[1] == 2:
        got = got[:, 1]  # two classes: decision_function gives the second's score alone
    if value.size != got.size:
        return np.full(len(value), np.inf)
    value = np.asarray(value, np.float64).reshape(len(value), -1)
    got = got.astype(np.float64).reshape(len(value), -1)
    scale = float(np.abs(value[np.isfinite(value)]).max(initial=0.0)) or 1.0
    with np.errstate(invalid="ignore"):
        same = (value == got) | (np.isnan(value) & np.isnan(got))
        distance = np.where(same, 0.0, np.abs(value - got) / scale)
    return np.nan_to_num(distance, nan=np.inf, posinf=np.inf).max(axis=1)


def tied(wanted: Mapping[str, np.ndarray]) -> np.ndarray:
    """The rows in which the original's two best classes are equal to rounding: forests vote so."""
    rows = len(next(iter(wanted.values())))
    scores = wanted.get("probabilities", wanted.get("scores"))
    if "label" not in wanted or scores is None or scores.ndim != 2 or scores.shape[1] < 2:
        return np.zeros(rows, bool)
    best = np.sort(scores, axis=1)
    return np.asarray(best[:, -1] - best[:, -2] <= TOLERANCE)


def _text(labels: Any) -> np.ndarray:
    """Labels as text, so that those of any type can be compared: 1, 1.0 and True are the same."""
    array = np.asarray(labels).reshape(-1)
    if array.dtype.kind in "bf":
        array = array.astype(np.int64)
    return array.astype(str)


def answers(estimator: Any, inputs: Sequence[Input], batch: Batch) -> dict[str, np.ndarray]:
    """What the original says, by the names of the ONNX model's outputs."""
    data = _frame(estimator, inputs, batch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if is_booster(estimator):
            return _of_booster(estimator, data)
        found = {}
        for name in names_of(estimator):
            if name == "probabilities":
                found[name] = estimator.predict_proba(data)
            elif name == "scores":
                scores = getattr(estimator, "decision_function", None) or estimator.transform
                found[name] = scores(data)
            else:
                found[name] = estimator.transform(data) if name == "output" else estimator.predict(data)
            if hasattr(found[name], "toarray"):
                found[name] = found[name].toarray()
        return {name: np.asarray(value) for name, value in found.items()}


def _of_booster(booster: Any, data: Any) -> dict[str, np.ndarray]:
    values = np.asarray(booster.predict(data))
    if not is_classifier(booster):
        return {"prediction": values}
    probabilities = np.stack([1 - values, values], axis=1) if values.ndim == 1 else values
    return {"label": probabilities.argmax(axis=1), "probabilities": probabilities}


def executed(proto: Any, batch: Batch) -> dict[str, np.ndarray]:
    """What ONNX Runtime says."""
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    try:
        session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        names = {value.name for value in session.get_inputs()}
        found = session.run(None, {name: array for name, array in batch.items() if name in names})
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        raise Failed(f"ONNX Runtime does not execute the converted model: {text}") from None
    return dict(zip([value.name for value in session.get_outputs()], map(np.asarray, found), strict=True))


def takes_missing(estimator: Any, inputs: Sequence[Input], proto: Any, batch: Batch) -> bool:
    """Whether the original takes NaN among its numbers, and its ONNX form gives the same answers then."""
    draw = np.random.default_rng(1)
    holes = {
        name: np.where(draw.random(array.shape) < 0.1, np.float32(np.nan), array) if array.dtype.kind == "f" else array
        for name, array in batch.items()
    }
    try:
        different, _ = compared(answers(estimator, inputs, holes), executed(proto, holes))
    except Exception:  # each library refuses in its own way
        return False
    return bool(different.mean() <= MOST_DIFFERENT) and any(array.dtype.kind == "f" for array in batch.values())


def _frame(estimator: Any, inputs: Sequence[Input], batch: Batch) -> Any:
    """The batch as the original takes it: a data frame where it knows its features by name."""
    if inputs[0].width is None:
        return [str(text) for text in batch[inputs[0].name]]
    wide = {
        item.name: batch[item.name].astype(np.float64 if item.kind == "float32" else object)
        for item in inputs
        if item.name in batch
    }
    columns = [name for item in inputs if item.name in batch for name in item.columns]
    if columns and not is_booster(estimator):
        try:
            import pandas
        except ImportError:
            if hasattr(entrance(estimator), "transformers_"):
                raise InvalidInput(
                    "the model knows its columns by name, which needs pandas", "install it", "pip install pandas"
                ) from None
        else:
            parts = [
                pandas.DataFrame(wide[item.name], columns=list(item.columns)) for item in inputs if item.name in wide
            ]
            return pandas.concat(parts, axis=1)
    if len(inputs) == 1:
        return wide[inputs[0].name]
    width = max(item.at + (item.width or 1) for item in inputs)
    data = np.zeros((len(next(iter(wide.values()))), width), object)
    for item in inputs:
        if item.name in wide:
            data[:, item.at : item.at + (item.width or 1)] = wide[item.name]
    return data


def made_up(estimator: Any, inputs: Sequence[Input], proto: Any) -> dict[str, np.ndarray]:
    """A batch around what the model learnt: the categories that it knows, and numbers about its means and splits."""
    draw = np.random.default_rng(0)
    first = entrance(estimator)
    if inputs[0].width is None:
        words = sorted(str(word) for word in getattr(first, "vocabulary_", ()))[:10_000] or ["text"]
        texts = [" ".join(draw.choice(words, draw.integers(1, 30))) for _ in range(ROWS)]
        return {inputs[0].name: np.array(texts, object)}
    places = [item.at + offset for item in inputs for offset in range(item.width or 1)]
    known = dict(learnt(first, range(max(places) + 1)))
    if len(inputs) == 1:
        known |= splits(proto, inputs[0].name)
    batch = {}
    for item in inputs:
        columns = [_column(known.get(item.at + at, (0.0, 1.0)), draw) for at in range(item.width or 1)]
        kind: Any = object if item.kind == "string" else np.float32
        batch[item.name] = np.stack([column.astype(kind) for column in columns], axis=1)
    return batch


def _column(known: Draw, draw: np.random.Generator) -> np.ndarray:
    if isinstance(known, tuple):
        return known[0] + known[1] * draw.standard_normal(ROWS)
    return known[draw.integers(0, len(known), ROWS)]


def learnt(step: Any, places: Iterable[int]) -> dict[int, Draw]:
    """What the first steps know of each feature: its categories, or its middle and spread."""
    places = list(places)
    if hasattr(step, "steps"):
        found: dict[int, Draw] = {}
        for _, inner in reversed(step.steps):
            found |= learnt(inner, places)
        return found
    if hasattr(step, "transformers_"):
        found = {}
        for _, inner, columns in step.transformers_:
            if not isinstance(inner, str):
                chosen = [at for at in positions(columns, step) if at < len(places)]
                found |= {at: known for at, known in learnt(inner, chosen).items() if at not in found}
        return found
    categories = getattr(step, "categories_", None)
    if categories is not None and len(categories) == len(places):
        return {at: np.asarray(values)[_present(values)] for at, values in zip(places, categories, strict=True)}
    middle = spread = None
    if hasattr(step, "mean_") and hasattr(step, "scale_"):
        middle, spread = step.mean_, step.scale_
    elif hasattr(step, "data_min_"):
        middle, spread = (step.data_min_ + step.data_max_) / 2, (step.data_max_ - step.data_min_) / 3
    elif hasattr(step, "center_"):
        middle, spread = step.center_, getattr(step, "scale_", None)
    elif hasattr(step, "statistics_"):
        values = np.asarray(step.statistics_)
        if values.dtype.kind in "OUST":
            return {at: np.array([value], object) for at, value in zip(places, values, strict=False)}
        middle, spread = values, np.abs(values) / 2
    if middle is None or np.shape(middle) != (len(places),):
        return {}
    sizes = np.ones(len(places)) if spread is None else np.asarray(spread, np.float64)
    return {at: (float(m), float(s) or 1.0) for at, m, s in zip(places, np.nan_to_num(middle), sizes, strict=True)}


def _present(values: Any) -> np.ndarray:
    """Which categories are values, and not NaN or None."""
    return np.array([value is not None and value == value for value in values], bool)


def splits(proto: Any, name: str) -> dict[int, Draw]:
    """The middle and the spread of the thresholds that trees compare each feature of an input with."""
    found: dict[int, list[float]] = {}
    same = {name}
    for node in proto.graph.node:
        if node.op_type in ("Identity", "Cast") and node.input[0] in same:
            same.update(node.output)
        if node.op_type not in TREES or node.input[0] not in same:
            continue
        told = {attribute.name: attribute for attribute in node.attribute}
        modes, places = told["nodes_modes"].strings, told["nodes_featureids"].ints
        for mode, at, value in zip(modes, places, told["nodes_values"].floats, strict=True):
            if mode != b"LEAF" and np.isfinite(value):
                found.setdefault(int(at), []).append(value)
    return {
        at: (float(np.median(values)), float(1.5 * np.std(values)) or abs(values[0]) or 1.0)
        for at, values in found.items()
    }
