"""Which files belong to a model: the one that a runtime opens, and those that hold its weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.errors import InvalidInput
from hasten.model import Model

if TYPE_CHECKING:
    from hasten.isolate import Limits, Scope

BESIDE_CTRANSLATE2 = ("config.json", "vocabulary.json", "vocabulary.txt", "pooling.json")
"""What CTranslate2, and its runtime here, read beside its weights."""


def files_of(model: Model, limits: Limits | None = None) -> list[Path]:
    """Paths relative to the model's folder, the main file first. An ONNX file is read in a worker."""
    main = Path(model.path.name)
    if model.format == "openvino":
        weights = main.with_suffix(".bin")
        return [main, weights] if (model.path.parent / weights).exists() else [main]
    if model.format == "ctranslate2":
        return [main, *(Path(name) for name in BESIDE_CTRANSLATE2 if (model.path.parent / name).exists())]
    if model.format == "openvino-tokenizer":
        back = Path(main.name.replace("_tokenizer", "_detokenizer"))
        return [file for each in (main, back) for file in (each, each.with_suffix(".bin"))]
    if model.format == "onnx-genai":
        return [main, *sorted(Path(path.name) for path in model.path.parent.glob("model.onnx*"))]
    if model.format == "torch":
        raise InvalidInput(
            "a module that torch.export cannot trace lives in its own code, and cannot be bundled",
            "change what it stumbles over: the notes of the study say what that is",
        )
    if model.format != "onnx":
        if not model.path.is_file():
            raise InvalidInput(f"{model.path} is not a file: a {model.format} model cannot be bundled yet")
        return [main]
    from hasten.isolate import Limits, run

    payload = {"path": str(model.path)}
    return [main, *map(Path, run(f"{__name__}:external_worker", payload, limits or Limits(seconds=300)))]


def external_worker(payload: dict[str, Any], scope: Scope) -> list[str]:
    """The external data files of the ONNX model at `path`, each checked to lie in its folder."""
    from hasten.formats.checks import graphs, tensors
    from hasten.formats.external import external_file
    from hasten.formats.onnx import parse
    from hasten.formats.skeleton import read_skeleton

    path = Path(payload["path"])
    folder = path.parent.resolve()
    found: dict[str, None] = {}
    for graph in graphs(parse(path, read_skeleton(path))):
        for tensor in tensors(graph):
            for entry in tensor.external_data:
                if entry.key == "location":
                    external_file(path, entry.value, tensor.name)
                    found[Path(entry.value).as_posix()] = None
    return [name for name in found if (folder / name).is_file()]
