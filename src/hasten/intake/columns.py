"""What an estimator takes: an array of numbers, a text or, where columns are of different kinds, an input for each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hasten.errors import InvalidInput

Kind = Literal["float32", "string"]
X, TEXT = "X", "text"


@dataclass(frozen=True)
class Input:
    """One input of the ONNX model: `width` features, None for a text a sample; `columns` are the features' names.

    `at` is the place of its first feature among those of the estimator.
    """

    name: str
    kind: Kind
    width: int | None
    columns: tuple[str, ...] = ()
    at: int = 0


def inputs_of(estimator: Any) -> tuple[Input, ...]:
    """The inputs of an estimator. Raises `InvalidInput` where it does not say how many features it takes."""
    first = entrance(estimator)
    if hasattr(first, "vocabulary_") and not hasattr(first, "n_features_in_"):
        return (Input(TEXT, "string", None),)
    count, names = features(estimator)
    kinds = kinds_of(first, range(count))
    if all(kind == "float32" for kind in kinds.values()):
        return (Input(X, "float32", count, tuple(names)),)
    used = sorted(kinds)
    titles = names or [f"column_{at}" for at in range(count)]
    if hasattr(first, "transformers_") and names:
        return tuple(Input(titles[at], kinds[at], 1, (titles[at],), at) for at in used)
    every = {at: kinds.get(at, "float32") for at in range(count)}
    if len(set(every.values())) == 1:
        return (Input(X, "string", count, tuple(names)),)
    return tuple(Input(titles[at], kind, 1, (names[at],) if names else (), at) for at, kind in every.items())


def entrance(estimator: Any) -> Any:
    """What sees the features first: the first step of a pipeline, the model within a search."""
    while True:
        steps = [step for _, step in getattr(estimator, "steps", ()) if step is not None and step != "passthrough"]
        inner = steps[0] if steps else getattr(estimator, "best_estimator_", None)
        if inner is None:
            return estimator
        estimator = inner


def features(estimator: Any) -> tuple[int, list[str]]:
    """How many features an estimator takes, and their names where it was fitted with names."""
    if hasattr(estimator, "get_booster"):
        booster = estimator.get_booster()
        return booster.num_features(), [str(name) for name in booster.feature_names or ()]
    if hasattr(estimator, "num_feature") and hasattr(estimator, "feature_name"):  # a booster of LightGBM's
        return estimator.num_feature(), _given(estimator.feature_name())
    for holder in (estimator, entrance(estimator)):
        count = getattr(holder, "n_features_in_", None)
        if count is not None:
            names = getattr(holder, "feature_names_in_", None)
            return int(count), _given([] if names is None else [str(name) for name in names])
    raise InvalidInput(
        f"this {type(estimator).__name__} does not say how many features it takes", "fit it before it is saved"
    )


def _given(names: Sequence[str]) -> list[str]:
    """Names that somebody gave, and not LightGBM for want of any."""
    return [] if all(name == f"Column_{at}" for at, name in enumerate(names)) else list(names)


def kinds_of(step: Any, places: Iterable[int]) -> dict[int, Kind]:
    """What each feature that `step` reads is, told by what it learnt from it; those that it drops are left out."""
    places = list(places)
    if hasattr(step, "steps"):
        return kinds_of(entrance(step), places)
    if hasattr(step, "transformers_"):
        return _of_columns(step, places)
    if hasattr(step, "transformer_list") and step.transformer_list:
        return kinds_of(entrance(step.transformer_list[0][1]), places)
    learnt = getattr(step, "categories_", None)
    if learnt is None and hasattr(step, "statistics_"):
        learnt = [step.statistics_] * len(places)
    if learnt is None and hasattr(step, "vocabulary_"):
        return {at: "string" for at in places}
    if learnt is None or len(learnt) != len(places):
        return {at: "float32" for at in places}
    return {
        at: "string" if values.dtype.kind in "OUST" else "float32" for at, values in zip(places, learnt, strict=True)
    }


def _of_columns(step: Any, places: Sequence[int]) -> dict[int, Kind]:
    """A column that several transformers read is text where one of them takes it for text."""
    found: dict[int, Kind] = {}
    for _, inner, columns in step.transformers_:
        if isinstance(inner, str) and inner == "drop":
            continue
        chosen = [places[at] for at in positions(columns, step)]
        kinds: Mapping[int, Kind] = (
            {at: "float32" for at in chosen} if isinstance(inner, str) else kinds_of(inner, chosen)
        )
        for at, kind in kinds.items():
            if found.get(at) != "string":
                found[at] = kind
    return found


def positions(columns: Any, step: Any) -> list[int]:
    """A transformer's columns as places among those that `step`, a ColumnTransformer, was fitted with."""
    import numpy as np

    count = int(step.n_features_in_)
    if isinstance(columns, slice) and not isinstance(columns.start or columns.stop, str):
        return list(range(count))[columns]
    names = [str(name) for name in getattr(step, "feature_names_in_", ())]
    if isinstance(columns, slice):
        first = 0 if columns.start is None else names.index(columns.start)
        return list(range(first, count if columns.stop is None else names.index(columns.stop) + 1))
    values = np.atleast_1d(np.asarray(columns))
    if values.dtype.kind == "b":
        return [int(at) for at in np.flatnonzero(values)]
    return [names.index(str(value)) if values.dtype.kind in "OUST" else int(value) % count for value in values]
