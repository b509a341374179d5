"""Reads model files: `load` in a worker, `inspect` in this process, `operators` for the arithmetic of each node."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.errors import Failed, HastenError, InvalidInput
from hasten.model import Model, Operator

if TYPE_CHECKING:
    from hasten.isolate import Limits, Scope

__all__ = ["inspect", "load", "operators"]

_BASE_MEMORY_BYTES = 4 << 30
_BASE_SECONDS = 120.0
_SLOWEST_BYTES_PER_S = 50e6

_SIGNS: tuple[tuple[int, bytes, str], ...] = (
    (0, b"PK\x03\x04", "a zip archive, such as PyTorch's .pt or Keras' .keras"),
    (0, b"\x89HDF", "an HDF5 file, such as Keras' .h5"),
    (4, b"TFL3", "a TensorFlow Lite model"),
    (0, b"GGUF", "a GGUF model"),
    (4, b"\0\0\0\0{", "a safetensors file: weights without a graph"),
    (0, b"\x80", "a Python pickle"),
    (0, b"\x1f\x8b", "a gzip archive"),
    (0, b"version https://git-lfs", "a Git LFS pointer, not the model itself (run: git lfs pull)"),
)


def load(path: str | Path, limits: Limits | None = None) -> Model:
    """Read the model at `path` in a worker. Raises `InvalidInput` for whatever is wrong with it."""
    found = _check_file(Path(path))
    return Model.from_json(_run("inspect_worker", {"path": str(found)}, found, limits))


def inspect(path: str | Path) -> Model:
    """The same in this process, for workers that have just written the file."""
    found = _check_file(Path(path))
    if found.suffix == ".xml":
        from hasten.formats.openvino import inspect_openvino

        return inspect_openvino(found)
    if found.suffix == ".pt2":
        from hasten.formats.pt2 import inspect_pt2

        return inspect_pt2(found)
    from hasten.formats.onnx import inspect_onnx

    _check_sign(found)
    return inspect_onnx(found)


def operators(model: Model, shapes: Mapping[str, Sequence[int]], limits: Limits | None = None) -> tuple[Operator, ...]:
    """Each node's FLOPs and bytes when the inputs have `shapes` (batch axis included), in a worker.

    Nodes come in execution order, those of subgraphs after their owner. Raises `InvalidInput` where `shapes` do not
    fit the signature.
    """
    if model.format in ("torch", "ctranslate2"):
        return ()  # a module that cannot be exported shows no operators, nor do CTranslate2's files
    payload = {"path": str(model.path), "shapes": {name: [int(n) for n in shape] for name, shape in shapes.items()}}
    return tuple(Operator.from_json(item) for item in _run("operators_worker", payload, model.path, limits))


def inspect_worker(payload: dict[str, Any], scope: Scope) -> dict[str, Any]:
    return inspect(payload["path"]).to_json()


def operators_worker(payload: dict[str, Any], scope: Scope) -> list[dict[str, Any]]:
    from dataclasses import asdict

    path = Path(payload["path"])
    if path.suffix == ".xml":
        from hasten.formats.openvino import operators_of
    elif path.suffix == ".pt2":
        from hasten.formats.pt2 import operators_of
    else:
        from hasten.formats.onnx import operators_of
    return [asdict(operator) for operator in operators_of(path, payload["shapes"])]


def _run(function: str, payload: dict[str, Any], path: Path, limits: Limits | None) -> Any:
    from hasten.isolate import Limits, WorkerFailed, run

    size = sum(file.stat().st_size for file in path.parent.iterdir() if file.stem == path.stem and file.is_file())
    default = Limits(_BASE_MEMORY_BYTES + 2 * size, _BASE_SECONDS + size / _SLOWEST_BYTES_PER_S)
    chosen = default if limits is None else replace(
        limits,
        memory_bytes=limits.memory_bytes or default.memory_bytes,
        seconds=limits.seconds or default.seconds,
    )  # fmt: skip
    try:
        return run(f"{__name__}:{function}", payload, limits=chosen)
    except WorkerFailed as error:
        raise InvalidInput(
            f"reading {path.name} failed: {error.outcome.reason}",
            "the file is damaged or larger than the limits allow: check it with onnx.checker.check_model(path)",
        ) from None


def _check_file(path: Path) -> Path:
    try:
        if path.is_dir():
            inside = sorted(item.name for item in path.iterdir() if item.suffix in (".onnx", ".xml"))
            what = "name an .onnx or .xml file, or a Hugging Face folder, which has a config.json"
            if inside:
                what = f"pass one of the models in it: {', '.join(inside[:5])}"
            raise InvalidInput(f"{path} is a folder, not a model file", what)
        if not path.exists():
            raise InvalidInput(f"there is no model at {path}", "check the path")
        if not path.is_file():
            raise InvalidInput(f"{path} is not a regular file", "pass an .onnx file or an OpenVINO .xml")
        if path.stat().st_size == 0:
            raise InvalidInput(f"{path} is empty", "copy or export the model again")
        if not os.access(path, os.R_OK):
            raise Failed(f"{path} may not be read", "change its permissions", f"chmod u+r {path}")
    except HastenError:
        raise
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path} cannot be opened: {error}", "check the path") from None
    return path.absolute()


def _check_sign(path: Path) -> None:
    with path.open("rb") as file:
        head = file.read(64)
    for at, sign, what in _SIGNS:
        if head[at:].startswith(sign):
            raise InvalidInput(
                f"{path.name} is not an ONNX model: it looks like {what}",
                "export the model to ONNX, for example with torch.onnx.export(model, example, 'model.onnx')",
            )
    if head.lstrip()[:1] in (b"<", b"{", b"["):
        raise InvalidInput(f"{path.name} is not an ONNX model: it looks like a text file", "pass an .onnx file")
