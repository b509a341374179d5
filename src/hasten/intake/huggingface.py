"""Hugging Face folders: the model that config.json names, its own pooling where it has one, and its tokenizer.

Everything comes from the folder; nothing is fetched, and code in the folder is run only where it is trusted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hasten.errors import Failed, InvalidInput
from hasten.intake.module import arguments, export
from hasten.isolate import Limits, Scope, WorkerFailed, run
from hasten.model import Facts, Model, Signature, Tensor

COMMAND = "pip install 'hasten[hf]'"
SECONDS = 1800.0
TEXT = ("input_ids", "attention_mask", "token_type_ids")
PROBES = ((2, 7), (3, 12))
"""Rows and tokens of the probes."""
MOST_JSON_BYTES = 16 << 20
GENERATES = ("ForConditionalGeneration",)


def is_folder(path: Path) -> bool:
    return path.is_dir() and (path / "config.json").is_file()


def load(
    folder: Path, into: Path, *, trust: bool = False, on_progress: Callable[[float | None, str], None] | None = None
) -> Model:
    """Build the folder's model in a worker, and export it."""
    config = read(folder / "config.json")
    check_code(folder, config, trust)
    if "model_type" not in config and (folder / "model.bin").is_file() and any(folder.glob("vocabulary.*")):
        raise InvalidInput(
            f"{folder.name} is in CTranslate2's own form, which is not read as a source",
            "give the Hugging Face folder that it was converted from: the lever ctranslate2 converts it again",
        )
    names = [str(name) for name in config.get("architectures") or ()]
    if any(name.endswith(GENERATES) for name in names):
        raise InvalidInput(
            f"{folder.name} is a {names[0]}, which generates from something else than text alone",
            "this version takes encoders, classifiers, vision models and decoders of text (...ForCausalLM)",
        )
    payload = {"folder": str(folder.absolute()), "into": str(into), "trust": trust}
    try:
        model = Model.from_json(
            run("hasten.intake.huggingface:make", payload, Limits(seconds=SECONDS), on_progress=on_progress)
        )
    except WorkerFailed as error:
        raise Failed(f"reading {folder.name} failed: {error.outcome.reason}") from None
    remember(folder, model.path)
    return model


def remember(folder: Path, model: Path) -> None:
    """Have a link to `folder` beside the file `model` that was made from it."""
    link = beside(model)
    if not link.exists() or not link.samefile(folder):
        link.unlink(missing_ok=True)
        link.symlink_to(folder.absolute())


def beside(model: Path) -> Path:
    """Where the folder lies that a model file was made from: a link, which is not there for other models."""
    return model.with_name("source")


def check_code(folder: Path, config: Mapping[str, Any], trust: bool) -> None:
    """Raises `InvalidInput` where the folder brings code of its own, and is not trusted."""
    if config.get("auto_map") and not trust:
        raise InvalidInput(
            f"{folder.name} wants to run code of its own ({', '.join(sorted(config['auto_map']))})",
            "pass --trust if you know what it does",
        )


def tokenizer(folder: Path, into: Path) -> Model | None:
    """The folder's own tokenizer, cut to what the model takes and written under `into`; None where it has none."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        return None
    payload = {"path": str(path.absolute()), "most": longest(folder), "into": str(into)}
    try:
        return Model.from_json(run("hasten.intake.huggingface:cut", payload, Limits(seconds=300)))
    except WorkerFailed as error:
        raise Failed(f"reading {path} failed: {error.outcome.reason}") from None


def cut(payload: dict[str, Any], scope: Scope) -> dict[str, Any]:
    """Worker function: a tokenizer without padding that keeps so many tokens, by the hash of its content."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise InvalidInput(f"text needs {error.name}", "install the extra", COMMAND) from None
    try:
        encoder = Tokenizer.from_file(payload["path"])
    except Exception as error:
        text = " ".join(str(error).split())[:200]
        raise InvalidInput(f"{payload['path']} is no tokenizer: {text}", "copy the folder again") from None
    encoder.no_padding()
    encoder.enable_truncation(payload["most"])
    content = encoder.to_str().encode()
    digest = hashlib.sha256(content).hexdigest()
    path = Path(payload["into"]) / f"{digest}.tokenizer.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    signature = Signature((Tensor("text", "string", ("batch",)),), (Tensor("input_ids", "int64", ("batch", "length")),))
    return Model(path, "tokenizer", digest, signature, Facts(0, len(content), None, "tokenizers")).to_json()


def longest(folder: Path) -> int:
    """The most tokens that the model takes, as the folder says; 512 where it does not."""
    found = [512]
    for name, key in (
        ("sentence_bert_config.json", "max_seq_length"),
        ("tokenizer_config.json", "model_max_length"),
        ("config.json", "max_position_embeddings"),
    ):
        value = read(folder / name).get(key) if (folder / name).is_file() else None
        if isinstance(value, int) and 0 < value < 1 << 20:
            found.append(value)
    return min(found[1:] or found)


def read(path: Path) -> Mapping[str, Any]:
    """A JSON object in the folder. Raises `InvalidInput` where it is none."""
    try:
        if path.stat().st_size > MOST_JSON_BYTES:
            raise InvalidInput(f"{path} is too large to be a configuration")
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}", "copy the folder again") from None
    except ValueError as error:
        raise InvalidInput(f"{path} is not JSON: {error}", "copy the folder again") from None
    if not isinstance(value, dict):
        raise InvalidInput(f"{path} holds no object", "copy the folder again")
    return value


def make(payload: dict[str, Any], scope: Scope) -> dict[str, Any]:
    """Worker function: build the model and export it."""
    folder = Path(payload["folder"])
    scope.progress(None, f"building {folder.name}")
    module = build(folder, payload["trust"])
    scope.progress(None, "exporting the module")
    return export(module, probes(folder, module), Path(payload["into"]), folder.name).to_json()


def build(folder: Path, trust: bool) -> Any:
    """The module, in evaluation mode, with the pooling that sentence-transformers' files tell."""
    try:
        import torch
        import transformers
    except ImportError as error:
        raise InvalidInput(f"Hugging Face folders need {error.name}", "install the extra", COMMAND) from None
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    names = read(folder / "config.json").get("architectures") or ["AutoModel"]
    kind = getattr(transformers, str(names[0]), None)
    if kind is None or (trust and not hasattr(kind, "from_pretrained")):
        kind = transformers.AutoModel
    try:
        inner = kind.from_pretrained(folder, local_files_only=True, trust_remote_code=trust)
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        raise InvalidInput(f"transformers cannot read {folder.name}: {type(error).__name__}: {text}") from None
    inner = inner.to(torch.float32).eval()
    pooling, normalise = pooled(folder)
    return inner if pooling is None else Sentence(inner, pooling, normalise)


def pooled(folder: Path) -> tuple[str | None, bool]:
    """How sentence-transformers' files say to pool (mean or cls; None for not at all), and whether to normalise."""
    path = folder / "modules.json"
    if not path.is_file():
        return None, False
    modules = json.loads(path.read_text(encoding="utf-8"))
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    if "Pooling" not in kinds:
        return None, False
    unknown = sorted(set(kinds) - {"Transformer", "Pooling", "Normalize"})
    if unknown:
        raise InvalidInput(
            f"{folder.name} has a {unknown[0]} after its pooling, which is not known", "export it yourself"
        )
    config = read(folder / str(modules[kinds.index("Pooling")]["path"]) / "config.json")
    for key, name in (("pooling_mode_cls_token", "cls"), ("pooling_mode_mean_tokens", "mean")):
        if config.get(key):
            return name, "Normalize" in kinds
    raise InvalidInput(f"{folder.name} pools in a way that is not known", "mean and cls are")


def Sentence(inner: Any, pooling: str, normalise: bool) -> Any:
    """An encoder with pooling, which is one MatMul so that nothing leaves unpooled, and with normalisation."""
    import torch

    class _Sentence(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, input_ids: Any, attention_mask: Any) -> dict[str, Any]:
            hidden = self.inner(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            if pooling == "cls":
                found = hidden[:, 0]
            else:
                weight = attention_mask.to(hidden.dtype)
                weight = weight / weight.sum(dim=1, keepdim=True)
                found = torch.matmul(weight.unsqueeze(1), hidden).squeeze(1)
            if normalise:
                found = torch.nn.functional.normalize(found, dim=1)
            return {"sentence_embedding": found}

    return _Sentence().eval()


def probes(folder: Path, module: Any) -> list[dict[str, Any]]:
    """Batches that the model takes: token numbers of two lengths, or images of the configured size."""
    import numpy as np

    config = read(folder / "config.json")
    names = arguments(module)
    if "input_ids" in names:
        draw = np.random.default_rng(0)
        high = max(2, min(int(config.get("vocab_size") or 1000), 1000))
        wanted = [name for name in TEXT[:2] if name in names]
        return [
            {
                name: draw.integers(1, high, shape) if name == "input_ids" else np.ones(shape, np.int64)
                for name in wanted
            }
            for shape in PROBES
        ]
    if "pixel_values" in names:
        size = config.get("image_size") or 224
        height, width = (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
        channels = int(config.get("num_channels") or 3)
        draw = np.random.default_rng(0)
        return [
            {"pixel_values": draw.normal(size=(rows, channels, height, width)).astype(np.float32)} for rows, _ in PROBES
        ]
    raise InvalidInput(
        f"{folder.name} takes {', '.join(names[:4])}: this version takes text and images",
        "write a function that makes the module, and name it as module:function",
    )
