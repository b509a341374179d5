"""Opens fitted models of scikit-learn, XGBoost and LightGBM, in a worker: no pickle of a stranger's is loaded."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hasten.errors import Failed, InvalidInput

COMMAND = "pip install 'hasten[classic]'"


def lacking(what: str, error: ImportError) -> InvalidInput:
    return InvalidInput(f"{what} needs {error.name}", "install the extra", COMMAND)


def opened(path: Path, trust: bool) -> Any:
    """The model in a .skops file, or in one of XGBoost's or LightGBM's own."""
    if path.suffix == ".skops":
        return _skops(path, trust)
    return _lightgbm(path) if path.suffix == ".txt" else _xgboost(path)


def unpickled(path: Path) -> Any:
    """What `classic.from_memory` wrote a moment ago."""
    try:
        return pickle.loads(path.read_bytes())
    except Exception as error:
        raise Failed(
            f"the estimator in memory cannot be handed to other processes: {type(error).__name__}: {error}",
            'write a function that makes it, and name it as "module:function"',
        ) from None


def plain(estimator: Any) -> Any:
    """The estimator with scikit-learn's interface where it is a booster, and cut to its best iteration."""
    if _is(estimator, "xgboost", "Booster"):
        return _wrapped(estimator)
    for inner in parts(estimator):
        if _is(inner, "xgboost", "XGBModel"):
            _to_best(inner)
    return estimator


def parts(estimator: Any) -> Iterator[Any]:
    """The estimator and, of a pipeline, its steps."""
    yield estimator
    for _, step in getattr(estimator, "steps", ()):
        yield from parts(step)


def is_booster(estimator: Any) -> bool:
    """Whether this is a booster of LightGBM, which has no interface of scikit-learn's."""
    return _is(estimator, "lightgbm", "Booster")


def is_classifier(estimator: Any) -> bool:
    if is_booster(estimator):
        return str(estimator.params.get("objective", "")).split(" ")[0] in ("binary", "multiclass", "multiclassova")
    from sklearn.base import is_classifier as known

    return bool(known(estimator))


def _is(value: Any, library: str, name: str) -> bool:
    return any(base.__module__.startswith(library) and base.__name__ == name for base in type(value).__mro__)


def _skops(path: Path, trust: bool) -> Any:
    try:
        import sklearn  # noqa: F401
        from skops import io
    except ImportError as error:
        raise lacking(".skops files", error) from None
    try:
        unknown = sorted(io.get_untrusted_types(file=path))
        if unknown and not trust:
            raise InvalidInput(
                f"{path.name} holds types that skops does not trust: {', '.join(unknown[:8])}"
                + (f" and {len(unknown) - 8} more" if len(unknown) > 8 else ""),
                "pass --trust if you know them: creating one may run its code",
            )
        return io.load(path, trusted=unknown)
    except InvalidInput:
        raise
    except ImportError as error:
        raise InvalidInput(f"{path.name} holds a model of {error.name}", "install it", COMMAND) from None
    except Exception as error:
        raise _unreadable(path, "skops", error, "skops.io.dump(model, path)") from None


def _xgboost(path: Path) -> Any:
    try:
        import xgboost
    except ImportError as error:
        raise lacking("XGBoost's files", error) from None
    try:
        booster = xgboost.Booster(model_file=path)
        return _wrapped(booster)
    except ImportError as error:
        raise lacking("XGBoost's files", error) from None
    except InvalidInput:
        raise
    except Exception as error:
        raise _unreadable(path, "XGBoost", error, "model.save_model(path)") from None


def _wrapped(booster: Any) -> Any:
    """An XGBoost booster with scikit-learn's interface, of the kind that its objective tells."""
    import json

    import xgboost

    objective = json.loads(booster.save_config())["learner"]["objective"]["name"]
    kind = xgboost.XGBClassifier if objective.startswith(("binary:", "multi:")) else xgboost.XGBRegressor
    found = kind()
    found.load_model(booster.save_raw("ubj"))
    _to_best(found)
    return found


def _to_best(model: Any) -> None:
    """XGBoost predicts with the trees up to its best iteration, and its ONNX converter takes them all."""
    booster = model.get_booster()
    best = booster.attr("best_iteration")
    if best is None or int(best) + 1 >= booster.num_boosted_rounds():
        return
    cut = booster[: int(best) + 1]
    cut.set_attr(best_iteration=None, best_score=None)
    model._Booster = cut
    model.n_estimators = int(best) + 1


def _lightgbm(path: Path) -> Any:
    try:
        import lightgbm
    except ImportError as error:
        raise lacking("LightGBM's files", error) from None
    try:
        return lightgbm.Booster(model_file=path)
    except Exception as error:
        raise _unreadable(path, "LightGBM", error, "booster.save_model(path)") from None


def _unreadable(path: Path, library: str, error: Exception, how: str) -> InvalidInput:
    text = " ".join(str(error).split())[:300]
    return InvalidInput(f"{library} cannot read {path.name}: {type(error).__name__}: {text}", f"save it again: {how}")
