"""Hugging Face folders of Whisper: converted once to OpenVINO's parts, with words and rules of decoding beside them.

The result is a folder with features, encoder and decoder, and `speech.json`: see `Rules`.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.errors import InvalidInput
from hasten.intake.huggingface import COMMAND, read, remember
from hasten.isolate import Limits, run
from hasten.model import Facts, Model, Signature

if TYPE_CHECKING:
    from hasten.isolate import Scope

ARCHITECTURE = "WhisperForConditionalGeneration"
BESIDE = ("features", "encoder")
"""The parts beside the decoder, which is the main one."""
RULES = "speech.json"
RATE = 16000
LIMIT_S = 1800.0
VERSION = "2"
"""Of what the conversion makes: what an older hasten made is made again."""
NEEDED = {
    "tokenizer.json": "the words of its tokens",
    "generation_config.json": "how an answer begins and what it may not hold",
    "preprocessor_config.json": "how sound becomes a spectrogram",
}


def is_folder(path: Path) -> bool:
    """Whether it is a Hugging Face folder of a Whisper model."""
    config = path / "config.json"
    return path.is_dir() and config.is_file() and ARCHITECTURE in (read(config).get("architectures") or ())


def load(folder: Path, into: Path, on_progress: Callable[[float | None, str], None] | None = None) -> Model:
    """The decoder of the folder's model, converted once and kept under `into` with the other parts beside it.

    Raises `InvalidInput` for a folder that lacks a file, or that transformers does not read.
    """
    for name, what in NEEDED.items():
        if not (folder / name).is_file():
            raise InvalidInput(f"{folder.name} has no {name}, which says {what}", "copy the whole folder")
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        raise InvalidInput(f"{folder.name} has no model.safetensors", "save it with safe_serialization=True")
    target = into / f"{identity(folder)}-{folder.name[:64]}"
    model = target / f"{folder.name[:64]}.xml"
    if not model.is_file() or not (target / RULES).is_file():
        size = sum(file.stat().st_size for file in weights)
        payload = {"folder": str(folder.absolute()), "into": str(target), "name": model.name}
        run(f"{__name__}:convert", payload, Limits((6 << 30) + 10 * size, LIMIT_S), on_progress=on_progress)
    remember(folder, model)
    from hasten import formats

    return formats.load(model)


def identity(folder: Path) -> str:
    """A hash of what the conversion of `folder` depends on, of 24 letters."""
    digest = hashlib.sha256(VERSION.encode())
    for file in [folder / "config.json", *(folder / name for name in NEEDED), *sorted(folder.glob("*.safetensors"))]:
        with file.open("rb") as opened:
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()[:24]


def parts(model: Model) -> Mapping[str, Model]:
    """The parts that lie beside the decoder `model`."""
    from hasten import formats

    return {name: formats.load(model.path.with_name(f"{name}.xml")) for name in BESIDE}


def words(model: Model) -> Model | None:
    """The words and rules that lie beside a decoder; None where there are none."""
    path = model.path.with_name(RULES)
    if not path.is_file():
        return None
    content = path.read_bytes()
    return Model(
        path, "speech-rules", hashlib.sha256(content).hexdigest(), Signature((), ()), Facts(0, len(content), None, "")
    )


def convert(payload: dict[str, Any], scope: Scope) -> None:
    """Worker function: the Whisper model in `folder` as OpenVINO models in `into`, whole or not at all."""
    try:
        import openvino as ov
        import torch  # noqa: F401
        import transformers
    except ImportError as error:
        raise InvalidInput(f"Hugging Face folders need {error.name}", "install the extra", COMMAND) from None
    from hasten.intake import whisper

    folder, into = Path(payload["folder"]), Path(payload["into"])
    told = rules(folder)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    scope.progress(None, f"building {folder.name}")
    try:
        module = transformers.WhisperForConditionalGeneration.from_pretrained(
            folder, local_files_only=True, use_safetensors=True, dtype="float32"
        ).eval()
        extractor = transformers.WhisperFeatureExtractor.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        raise InvalidInput(f"transformers cannot read {folder.name}: {type(error).__name__}: {text}") from None
    sizes = (extractor.sampling_rate, extractor.hop_length, extractor.n_fft)
    if sizes != (RATE, whisper.HOP, whisper.WINDOW):
        raise InvalidInput(f"{folder.name} hears {sizes[0]} Hz in steps of {sizes[1]}", "only 16 kHz and 160 are known")
    if int(extractor.n_samples) != module.config.max_source_positions * 2 * whisper.HOP:
        raise InvalidInput(f"{folder.name}: preprocessor_config.json is of another model", "copy the folder again")
    staging = into.with_name(f"{into.name}.part")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        scope.progress(None, f"converting {folder.name}")
        made = whisper.parts(module, extractor.mel_filters)
        scope.progress(None, "comparing it with the original")
        whisper.verify(made, module, extractor, told)
        for name, model in made.items():
            path = staging / (payload["name"] if name == "decoder" else f"{name}.xml")
            ov.save_model(model, str(path), compress_to_fp16=False)
        (staging / RULES).write_text(json.dumps(told), encoding="utf-8")
        shutil.rmtree(into, ignore_errors=True)
        staging.rename(into)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def rules(folder: Path) -> dict[str, Any]:
    """How the folder's model decodes, as `speech.json` holds it.

    `prompt` begins every answer, `end` ends it; `suppress` are never chosen, `suppress_first` not first; an answer with
    its prompt has at most `positions` tokens; `samples` is what the encoder hears at once; `words` are the tokens'
    texts in the bytes' own letters, None for those that are no text.
    """
    config, told = read(folder / "config.json"), read(folder / "generation_config.json")
    words, numbers = vocabulary(folder / "tokenizer.json")
    end = told.get("eos_token_id", config.get("eos_token_id"))
    return {
        "prompt": prompt(told, config, numbers),
        "end": int(end[0] if isinstance(end, list) else end),
        "suppress": [int(each) for each in told.get("suppress_tokens") or ()],
        "suppress_first": [int(each) for each in told.get("begin_suppress_tokens") or ()],
        "positions": int(config["max_target_positions"]),
        "samples": int(config["max_source_positions"]) * 320,
        "words": words,
    }


def prompt(told: Mapping[str, Any], config: Mapping[str, Any], numbers: Mapping[str, int]) -> list[int]:
    """What an answer begins with: the start, language and task of a multilingual model, and no timestamps."""
    start = told.get("decoder_start_token_id", config.get("decoder_start_token_id"))
    if start is None:
        raise InvalidInput("generation_config.json has no decoder_start_token_id", "copy the folder again")
    found = [int(start)]
    forced = {int(at): token for at, token in told.get("forced_decoder_ids") or ()}
    if told.get("is_multilingual"):
        language, task = str(told.get("language") or "en"), str(told.get("task") or "transcribe")
        for at, (name, known) in enumerate(
            ((f"<|{language.strip('<|>')}|>", told.get("lang_to_id")), (task, told.get("task_to_id"))), start=1
        ):
            token = forced.get(at) or (known or {}).get(name) or numbers.get(name if "<" in name else f"<|{name}|>")
            if token is None:
                raise InvalidInput(f"the model has no token for {name}", "name language and task in generation_config")
            found.append(int(token))
    silent = told.get("no_timestamps_token_id", numbers.get("<|notimestamps|>"))
    return found if silent is None else [*found, int(silent)]


def vocabulary(path: Path) -> tuple[list[str | None], dict[str, int]]:
    """The texts of the tokens by number, and the numbers of the special ones."""
    content = read(path)
    model = content.get("model")
    if not isinstance(model, dict) or model.get("type") != "BPE" or not isinstance(model.get("vocab"), dict):
        raise InvalidInput(f"{path.name} is no byte-pair vocabulary, which Whisper has", "copy the folder again")
    known: dict[int, str | None] = {int(number): word for word, number in model["vocab"].items()}
    special = {str(token["content"]): int(token["id"]) for token in content.get("added_tokens", ())}
    known |= {number: None for number in special.values()}
    return [known.get(number) for number in range(max(known) + 1)], special
