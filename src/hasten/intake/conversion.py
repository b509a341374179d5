"""Converts an estimator to an ONNX graph of plain tensors with a free batch axis, through skl2onnx and onnxmltools."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hasten.errors import Failed, HastenError
from hasten.intake.columns import Input, entrance, positions
from hasten.intake.estimators import is_booster, is_classifier, lacking

OPSETS = {"": 17, "ai.onnx.ml": 3}
"""What ONNX Runtime has executed longest and fastest: trees by TreeEnsembleClassifier and TreeEnsembleRegressor."""
BATCH = "batch"
LOCALE = "C.UTF-8"
"""ONNX Runtime lowers text by a locale of the machine's, and converters name one that small images lack."""


def to_onnx(estimator: Any, inputs: Sequence[Input]) -> Any:
    """The `ModelProto`. Classifiers give `label` and `probabilities` (or `scores`), regressors `prediction`.

    Raises `Failed` where a step has no ONNX form.
    """
    try:
        import onnxmltools  # noqa: F401
        import skl2onnx  # noqa: F401
    except ImportError as error:
        raise lacking("converting this model to ONNX", error) from None
    try:
        with warnings.catch_warnings(), _whole_numbers():
            warnings.simplefilter("ignore")
            proto = _of_booster(estimator, inputs) if is_booster(estimator) else _of_sklearn(estimator, inputs)
    except HastenError:
        raise
    except ImportError as error:
        raise lacking("converting this model to ONNX", error) from None
    except Exception as error:
        raise Failed(
            f"this {type(estimator).__name__} cannot be converted to ONNX: {type(error).__name__}: {_short(error)}",
            "replace the step that has no ONNX form by one that skl2onnx knows, or leave it out and preprocess the "
            "samples",
        ) from None
    return finished(proto, names_of(estimator))


def names_of(estimator: Any) -> tuple[str, ...]:
    """What the outputs are called, in the order of the converters."""
    if is_classifier(estimator):
        scores = is_booster(estimator) or hasattr(estimator, "predict_proba")
        return "label", "probabilities" if scores else "scores"
    if _kind(estimator) in ("clusterer", "outlier_detector"):
        return "label", "scores"
    return ("prediction",) if is_booster(estimator) or hasattr(estimator, "predict") else ("output",)


def _kind(estimator: Any) -> str | None:
    if is_booster(estimator):
        return None
    from sklearn.utils import get_tags

    return get_tags(estimator).estimator_type


def _of_sklearn(estimator: Any, inputs: Sequence[Input]) -> Any:
    from skl2onnx import convert_sklearn
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType

    _register(estimator)
    estimator = copy.deepcopy(estimator)
    by_place(entrance(estimator), inputs)
    options: dict[int, dict[str, Any]] = {}
    for part in within(estimator):
        if hasattr(part, "get_booster"):
            part.get_booster().feature_names = None  # onnxmltools reads features by number
        if hasattr(part, "flatten_transform"):
            part.flatten_transform = False  # a vote's `transform`, which skl2onnx refuses, is not what is converted
        if hasattr(part, "vocabulary_") and hasattr(part, "lowercase"):
            options[id(part)] = {"locale": LOCALE}
    types = [
        (
            item.name,
            (StringTensorType if item.kind == "string" else FloatTensorType)(
                [None] if item.width is None else [None, item.width]
            ),
        )
        for item in inputs
    ]
    plain = options | ({id(estimator): {"zipmap": False}} if is_classifier(estimator) else {})
    try:
        return convert_sklearn(estimator, "model", types, options=plain, target_opset=OPSETS)
    except NameError as error:  # a classifier that never has a ZipMap has no such option
        if "zipmap" not in str(error):
            raise
        return convert_sklearn(estimator, "model", types, options=options, target_opset=OPSETS)


def by_place(step: Any, inputs: Sequence[Input]) -> None:
    """Columns by number: skl2onnx finds them by name only where each is an input of its own."""
    if not hasattr(step, "transformers_"):
        return
    order = [item.at + offset for item in inputs for offset in range(item.width or 1)]
    place = {at: number for number, at in enumerate(order)}
    step.transformers_ = [
        (name, inner, [place[at] for at in positions(columns, step)])
        for name, inner, columns in step.transformers_
        if not (isinstance(inner, str) and inner == "drop")
    ]


def _of_booster(booster: Any, inputs: Sequence[Input]) -> Any:
    from onnxmltools import convert_lightgbm
    from onnxmltools.convert.common.data_types import FloatTensorType

    types = [(item.name, FloatTensorType([None, item.width])) for item in inputs]
    return convert_lightgbm(booster, "model", types, target_opset=OPSETS[""] - 2, zipmap=False)


def _register(estimator: Any) -> None:
    """Tell skl2onnx how XGBoost's and LightGBM's own estimators are converted, where the model has one."""
    from skl2onnx import update_registered_converter
    from skl2onnx.common.shape_calculator import (
        calculate_linear_classifier_output_shapes,
        calculate_linear_regressor_output_shapes,
    )

    options = {"nocl": [True, False], "zipmap": [True, False, "columns"], "raw_scores": [True, False]}
    libraries = {type(part).__module__.partition(".")[0] for part in within(estimator)}
    found: list[tuple[type, Callable[..., Any]]] = []
    names: tuple[str, ...]
    if "xgboost" in libraries:
        import xgboost
        from onnxmltools.convert.xgboost.operator_converters.XGBoost import convert_xgboost

        names = ("XGBClassifier", "XGBRegressor", "XGBRFClassifier", "XGBRFRegressor", "XGBRanker")
        found += [(getattr(xgboost, name), convert_xgboost) for name in names]
    if "lightgbm" in libraries:
        import lightgbm
        from onnxmltools.convert.lightgbm.operator_converters.LightGbm import convert_lightgbm

        names = ("LGBMClassifier", "LGBMRegressor", "LGBMRanker")
        found += [(getattr(lightgbm, name), convert_lightgbm) for name in names]
    for kind, converter in found:
        classifies = kind.__name__.endswith("Classifier")
        shapes = calculate_linear_classifier_output_shapes if classifies else calculate_linear_regressor_output_shapes
        extra = options if classifies else {"split": None}
        update_registered_converter(kind, f"Hasten{kind.__name__}", shapes, converter, options=extra)


def within(value: Any, depth: int = 6) -> Iterator[Any]:
    """The estimator and every estimator that it holds: steps, members of ensembles, the best of a search."""
    if depth == 0:
        return
    if isinstance(value, list | tuple):
        for item in value[:64]:
            yield from within(item, depth)
    elif hasattr(value, "get_params"):
        yield value
        for item in vars(value).values():
            yield from within(item, depth - 1)


@contextmanager
def _whole_numbers() -> Iterator[None]:
    """skl2onnx 1.20 hands NumPy's integers of HistGradientBoosting to onnx, which since 1.20 takes Python's alone."""
    import numpy as np
    from skl2onnx.common import _container

    was = _container.make_node

    def make_node(*args: Any, **attributes: Any) -> Any:
        for name, value in attributes.items():
            if isinstance(value, list) and any(isinstance(item, np.integer) for item in value):
                attributes[name] = [int(item) for item in value]
        return was(*args, **attributes)

    _container.make_node = make_node
    try:
        yield
    finally:
        _container.make_node = was


def finished(proto: Any, names: Sequence[str]) -> Any:
    """Named outputs, a named batch axis, each opset once, and no input that nothing reads."""
    outputs = list(proto.graph.output)
    for value in outputs:
        if not value.type.HasField("tensor_type"):
            raise Failed(
                f"the converter gives {value.name!r} as {value.type.WhichOneof('value')}, not as a tensor",
                "convert one model for each of its targets",
            )
    kept = outputs[: len(names)]
    del proto.graph.output[len(kept) :]
    wanted = {value.name: name for value, name in zip(kept, names, strict=False)}
    taken = {name for node in proto.graph.node for name in (*node.input, *node.output)}
    renamed = {name: f"{name}_" for name in set(wanted.values()) & (taken - set(wanted))} | wanted
    for node in proto.graph.node:
        for field in (node.input, node.output):
            for at, name in enumerate(field):
                field[at] = renamed.get(name, name)
    for value in (*proto.graph.output, *proto.graph.value_info):
        value.name = renamed.get(value.name, value.name)
    for value in (*proto.graph.input, *proto.graph.output):
        dims = value.type.tensor_type.shape.dim
        if dims:
            dims[0].Clear()
            dims[0].dim_param = BATCH
    read = {name for node in proto.graph.node for name in node.input}
    for value in [value for value in proto.graph.input if value.name not in read]:
        proto.graph.input.remove(value)
    newest = {entry.domain: 0 for entry in proto.opset_import}
    for entry in proto.opset_import:
        newest[entry.domain] = max(newest[entry.domain], entry.version)
    del proto.opset_import[:]
    for domain, number in sorted(newest.items()):
        entry = proto.opset_import.add()
        entry.domain, entry.version = domain, number
    return proto


def without(proto: Any, name: str) -> None:
    """Take an output out of the graph; what computes it alone is left for the runtime to drop."""
    for value in [value for value in proto.graph.output if value.name == name]:
        proto.graph.output.remove(value)


def _short(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:3])[:300]
