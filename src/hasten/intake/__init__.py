"""Brings what people have into a form that runtimes load.

Model files that runtimes read are read as they are. PyTorch modules (made by `module:function`, given in memory, saved
as an exported program or as a Hugging Face folder) become exported programs of hasten's own form. Fitted models of
scikit-learn, XGBoost and LightGBM (in a file, made by `module:function` or given in memory) become ONNX files. Language
models, in GGUF files or in Hugging Face folders, become decoders in OpenVINO's form; folders of Whisper become the
features, the encoder and the decoder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hasten import formats
from hasten.errors import Failed, InvalidInput
from hasten.intake import causal, classic, gguf, huggingface, speech
from hasten.model import Model
from hasten.paths import cache_dir
from hasten.variant import Program

__all__ = ["load", "parts", "program", "tokenizer", "told"]

OnProgress = Callable[[float | None, str], None]


def load(
    source: Any,
    data: Any = None,
    *,
    weights: str | Path | None = None,
    trust: bool = False,
    reading: Mapping[str, Any] | None = None,
    on_progress: OnProgress | None = None,
) -> Model:
    """The model that `source` names: a file, `module:function`, or an `nn.Module` or an estimator in memory.

    `data` names the samples, which tell a PyTorch module's inputs where it does not; an estimator and its ONNX form are
    compared on them, and `reading` says how they are read (label, preprocess, batch_axis). `weights` is a state dict
    for the module that `module:function` makes. `trust` allows what can run code on opening, such as a .pt2 file.
    """
    if isinstance(source, Model):
        return source
    samples = {"spec": _spec(data)} | dict(reading or {})
    if classic.is_estimator(source):
        return classic.from_memory(source, models(), samples, on_progress)
    if is_module(source):
        from hasten.intake.factory import exported
        from hasten.intake.module import Untraceable

        try:
            return exported(source, None, data, models(), type(source).__name__)
        except Untraceable as error:
            raise Failed(
                f"the module in memory cannot be handed to other processes: {error.cause}",
                'write a function that makes it, and name it as "module:function"',
            ) from None
    if not isinstance(source, str | Path):
        raise InvalidInput(
            f"a {type(source).__name__} is no model", "give a path, module:function, an nn.Module or a fitted estimator"
        )
    path, text = Path(source), str(source)
    classic.refuse_pickle(path)
    if weights is not None and (path.exists() or ":" not in text):
        raise InvalidInput("--weights belongs to a model that module:function makes", "leave it out")
    if classic.is_file(path):
        return classic.load(path, models(), samples, trust=trust, on_progress=on_progress)
    if path.suffix == ".pt2" and path.is_file():
        return _program(path, trust, data, on_progress)
    if not path.exists() and ":" in text and not text.endswith((".onnx", ".xml")):
        from hasten.intake import factory

        state = None if weights is None else str(weights)
        return factory.load(
            text, _spec(data), models(), weights=state, reading=dict(reading or {}), on_progress=on_progress
        )
    if causal.is_decoder(path):
        return causal.load(path, models(), trust=trust, on_progress=on_progress)
    if speech.is_folder(path):
        return speech.load(path, models(), on_progress)
    if huggingface.is_folder(path):
        return huggingface.load(path, models(), trust=trust, on_progress=on_progress)
    if gguf.is_gguf(path):
        return gguf.load(path, models(), on_progress)
    return formats.load(path)


def told(model: Model) -> Mapping[str, Any]:
    """What the conversion of an estimator says beside its ONNX file: see `classic.told`."""
    return classic.told(model)


def tokenizer(source: Any, model: Model) -> Model | None:
    """The tokenizer that came with `model`, read from `source`, where that has one."""
    if not isinstance(source, str | Path):
        return None
    if speech.is_folder(Path(source)):
        return speech.words(model)
    if huggingface.is_folder(Path(source)) and program(source) == "single":
        return huggingface.tokenizer(Path(source), models())
    return gguf.tokenizer(model)


def program(source: Any) -> Program:
    """How the parts of what `source` names work together."""
    if not isinstance(source, str | Path):
        return "single"
    if speech.is_folder(Path(source)):
        return "encoder_decoder"
    return "generate" if gguf.is_gguf(Path(source)) or causal.is_decoder(Path(source)) else "single"


def parts(source: Any, model: Model) -> Mapping[str, Model]:
    """The parts that came with `model`, the main one, read from `source`."""
    return speech.parts(model) if program(source) == "encoder_decoder" else {}


def models() -> Path:
    """Where exported programs are kept."""
    return cache_dir() / "models"


def is_module(source: Any) -> bool:
    """Whether `source` is an `nn.Module`, told without importing PyTorch."""
    return any(base.__module__ == "torch.nn.modules.module" for base in type(source).__mro__)


def _spec(data: Any) -> str | None:
    """What a worker can open of the data: only what has a name."""
    return str(data) if isinstance(data, str | Path) else None


def _program(path: Path, trust: bool, data: Any, on_progress: OnProgress | None) -> Model:
    """Our own files are opened; a stranger's is exported anew, once it is trusted."""
    from hasten.formats.pt2 import inspect_pt2

    if models().absolute() in path.absolute().parents:
        return inspect_pt2(path)
    if not trust:
        raise InvalidInput(
            f"{path.name} is an exported PyTorch program, and opening one can run code that it holds",
            "pass --trust if you made it or trust who did",
        )
    from hasten.intake import factory

    return factory.load(str(path.absolute()), _spec(data), models(), on_progress=on_progress)
