"""scikit-learn, XGBoost and LightGBM models, which become ONNX files; what a worker has converted is remembered."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from hasten.errors import Failed, InvalidInput
from hasten.intake.estimators import opened, unpickled
from hasten.isolate import Limits, Scope, WorkerFailed, run
from hasten.model import Model

OnProgress = Callable[[float | None, str], None]

PICKLES = (".pkl", ".pickle", ".joblib")
SIGNS = {".json": b'"learner"', ".ubj": b"learner", ".txt": b"tree\n"}
"""What stands at the beginning of the files of XGBoost and of LightGBM."""
LIBRARIES = ("sklearn", "xgboost", "lightgbm")
PACKAGES = ("hasten", "scikit-learn", "skl2onnx", "onnxmltools", "xgboost", "lightgbm", "skops", "onnx")
HEAD_BYTES = 1 << 16
MEMORY_BYTES = 8 << 30
SECONDS = 1800.0
NOTES = "conversion.json"


def is_file(path: Path) -> bool:
    """Whether `path` is a model file of these libraries, by its suffix and the first bytes."""
    if path.suffix == ".skops":
        return True
    if path.suffix not in SIGNS or not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return SIGNS[path.suffix] in file.read(HEAD_BYTES)
    except OSError:
        return False


def is_estimator(source: Any) -> bool:
    """Whether `source` is an estimator or a booster, told without importing a library."""
    return not isinstance(source, type) and any(
        base.__module__.partition(".")[0] in LIBRARIES for base in type(source).__mro__
    )


def refuse_pickle(path: Path) -> None:
    """Raise `InvalidInput` for a pickle, and say how the model is saved without one."""
    if path.suffix in PICKLES:
        raise InvalidInput(
            f"{path.name} is a pickle: opening one runs whatever code it holds, so hasten never does",
            f"save the model again where it was made: skops.io.dump(model, '{path.stem}.skops') for scikit-learn, "
            "model.save_model('model.ubj') for XGBoost, booster.save_model('model.txt') for LightGBM; "
            "or write a function that loads it, and name it as module:function",
        )


def load(
    path: Path,
    into: Path,
    samples: Mapping[str, Any],
    *,
    trust: bool = False,
    on_progress: OnProgress | None = None,
) -> Model:
    """The ONNX form of the model file at `path`, made in a worker.

    `samples` says how the user's samples are read (see `data.glimpse.first`): the original and its ONNX form are
    compared on them, and on made-up ones.
    """
    if not path.is_file():
        raise InvalidInput(f"there is no model at {path}", "check the path")
    with path.open("rb") as file:
        content = hashlib.file_digest(file, "sha256").hexdigest()
    payload = {"path": str(path.absolute()), "name": path.stem, "trust": trust}
    return _remembered(payload, content, into, samples, path.stat().st_size, on_progress)


def from_memory(estimator: Any, into: Path, samples: Mapping[str, Any], on_progress: OnProgress | None = None) -> Model:
    """The ONNX form of a fitted estimator in memory, which crosses to a worker through a private temporary file."""
    try:
        content = pickle.dumps(estimator)
    except Exception as error:
        raise Failed(
            f"the estimator in memory cannot be handed to other processes: {type(error).__name__}: {error}",
            'write a function that makes it, and name it as "module:function"',
        ) from None
    with tempfile.TemporaryDirectory(prefix="hasten-") as folder:  # for the user's eyes alone
        path = Path(folder) / "estimator"
        path.write_bytes(content)
        payload = {"memory": str(path), "name": type(estimator).__name__}
        digest = hashlib.sha256(content).hexdigest()
        return _remembered(payload, digest, into, samples, len(content), on_progress)


def make(payload: Mapping[str, Any], scope: Scope) -> dict[str, Any]:
    """Worker function: open the model and convert it."""
    scope.progress(None, f"opening {payload['name']}")
    if "memory" in payload:
        estimator = unpickled(Path(payload["memory"]))
    else:
        estimator = opened(Path(payload["path"]), payload["trust"])
    return converted(estimator, payload["name"], Path(payload["into"]), payload["samples"], scope).to_json()


def converted(estimator: Any, name: str, into: Path, samples: Mapping[str, Any], scope: Scope) -> Model:
    """Convert an estimator in this process, compare it with its ONNX form, and keep that by the hash of its content."""
    from dataclasses import replace

    from hasten import formats
    from hasten.intake import agreement
    from hasten.intake.columns import inputs_of
    from hasten.intake.conversion import to_onnx
    from hasten.intake.estimators import plain

    estimator = plain(estimator)
    scope.progress(None, f"converting {name} to ONNX")
    inputs = inputs_of(estimator)
    proto = to_onnx(estimator, inputs)
    read = {value.name for value in proto.graph.input}
    inputs = tuple(item for item in inputs if item.name in read)
    scope.progress(None, "comparing the ONNX model with the original")
    made_up = agreement.made_up(estimator, inputs, proto)
    notes = agreement.check(estimator, inputs, proto, made_up, "made-up samples")
    missing = agreement.takes_missing(estimator, inputs, proto, made_up)
    content = proto.SerializeToString(deterministic=True)
    digest = hashlib.sha256(content).hexdigest()
    path = into / digest / f"{name}.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, content)
    columns = {item.name: list(item.columns) for item in inputs if item.columns}
    found = {"columns": columns, "missing": missing, "notes": notes}
    _write(path.with_name(NOTES), json.dumps(found, indent=1).encode())
    model = formats.inspect(path)
    if samples.get("spec") is not None:
        given = _given(model, samples)
        if given is not None:
            notes += agreement.check(estimator, inputs, proto, given, "samples")
            _write(path.with_name(NOTES), json.dumps(found, indent=1).encode())
    return replace(model, path=path.absolute())


def told(model: Model) -> Mapping[str, Any]:
    """What a conversion says beside its ONNX file.

    `columns` are the names that the original knows its features by, for each input; `missing` whether it takes NaN;
    `notes` are for the user. Empty for any other model.
    """
    path = model.path.with_name(NOTES)
    if model.format != "onnx" or not path.is_file() or model.path.parent.name != model.sha256:
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _given(model: Model, samples: Mapping[str, Any]) -> dict[str, Any] | None:
    """The user's first samples as one batch; None where they cannot be read, which is said when all are."""
    from hasten.data.glimpse import first

    try:
        return first(model, told(model), **samples)
    except InvalidInput:
        return None


def _remembered(
    payload: dict[str, Any],
    content: str,
    into: Path,
    samples: Mapping[str, Any],
    size: int,
    on_progress: OnProgress | None,
) -> Model:
    """What was made of the same content with the same versions and samples, else made now."""
    known = [content, payload["name"], payload.get("trust"), _versions(), _state(samples)]
    key = hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()
    note = into / "conversions" / f"{key}.json"
    try:
        model = Model.from_json(json.loads(note.read_text(encoding="utf-8")))
        if model.path.is_file() and told(model):
            return model
    except (OSError, ValueError, KeyError, TypeError):
        pass
    limits = Limits(MEMORY_BYTES + 20 * size, SECONDS)
    try:
        answer = run(
            f"{__name__}:make",
            payload | {"into": str(into), "samples": dict(samples)},
            limits,
            on_progress=on_progress,
        )
    except WorkerFailed as error:
        raise Failed(f"converting {payload['name']} to ONNX failed: {error.outcome.reason}") from None
    note.parent.mkdir(parents=True, exist_ok=True)
    _write(note, json.dumps(answer).encode())
    return Model.from_json(answer)


def _state(samples: Mapping[str, Any]) -> list[Any]:
    """What tells samples from others: how they are read, and of a file its size and when it was written."""
    path = Path(str(samples.get("spec")))
    stat = path.stat() if samples.get("spec") is not None and path.is_file() else None
    return [dict(samples), str(path.absolute()), None if stat is None else [stat.st_size, stat.st_mtime_ns]]


def _versions() -> Sequence[str]:
    found = []
    for package in PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return found


def _write(path: Path, content: bytes) -> None:
    """Write so that a file is there whole or not at all."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    partial.write_bytes(content)
    partial.replace(path)
