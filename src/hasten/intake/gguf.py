"""GGUF files: language models with their tokenizer, read by OpenVINO GenAI, with weights in their own few bits.

The weights are exact (see `gguf_exact`). The result is an OpenVINO decoder with its tokenizer and detokenizer beside
it, in a folder of its own.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.errors import Failed, InvalidInput
from hasten.isolate import Limits, run
from hasten.model import Facts, Model, Signature

if TYPE_CHECKING:
    from hasten.isolate import Scope

COMMAND = "pip install 'hasten[llm]'"
LIMIT_S = 900.0
MAGIC = b"GGUF"
FORM = 2
"""Of what is kept; conversions of another form are not used."""
TOKENIZER, DETOKENIZER = "openvino_tokenizer", "openvino_detokenizer"


def is_gguf(path: Path) -> bool:
    """Whether it is a file that begins as GGUF does, or is called so."""
    if not path.is_file():
        return False
    if path.suffix.lower() == ".gguf":
        return True
    with path.open("rb") as file:
        return file.read(4) == MAGIC


def load(path: Path, into: Path, on_progress: Callable[[float | None, str], None] | None = None) -> Model:
    """The decoder in the GGUF file at `path`, converted once and kept under `into`.

    Raises `InvalidInput` for what is no GGUF file or of a kind that OpenVINO GenAI does not read.
    """
    with path.open("rb") as file:
        if file.read(4) != MAGIC:
            raise InvalidInput(f"{path.name} is no GGUF file, or was cut off", "download it again")
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    folder = into / f"{digest[:24]}-{FORM}-{path.stem[:64]}"
    model = folder / f"{path.stem}.xml"
    if not (folder / f"{TOKENIZER}.xml").is_file() or not model.is_file():
        payload = {"path": str(path.absolute()), "folder": str(folder)}
        size = path.stat().st_size
        if on_progress is not None:
            on_progress(None, f"converting {path.name}")
        run(f"{__name__}:convert", payload, Limits((4 << 30) + 12 * size, LIMIT_S), on_progress=on_progress)
    link = beside(model)
    if not link.exists() or not link.samefile(path):
        link.unlink(missing_ok=True)
        link.symlink_to(path.absolute())
    from hasten import formats

    return formats.load(model)


def beside(decoder: Path) -> Path:
    """Where the GGUF file lies that a decoder was made from: a link, which is not there for other decoders."""
    return decoder.with_name(f"{decoder.stem}.gguf")


def tokenizer(model: Model) -> Model | None:
    """The tokenizer that lies beside a decoder, with the detokenizer; None where there is none."""
    path = model.path.with_name(f"{TOKENIZER}.xml")
    if not path.is_file():
        return None
    files = [path.with_name(f"{name}{suffix}") for name in (TOKENIZER, DETOKENIZER) for suffix in (".xml", ".bin")]
    digest = hashlib.sha256("".join(hashlib.sha256(file.read_bytes()).hexdigest() for file in files).encode())
    size = sum(file.stat().st_size for file in files)
    return Model(
        path, "openvino-tokenizer", digest.hexdigest(), Signature((), ()), Facts(0, size, None, "OpenVINO tokenizers")
    )


def convert(payload: dict[str, Any], scope: Scope) -> None:
    """Worker function: the GGUF file at `path` as OpenVINO models in `folder`, whole or not at all."""
    try:
        import gguf  # noqa: F401 (asked for at the start, not after minutes)
        import openvino_genai
    except ImportError:
        raise InvalidInput("GGUF files need openvino-genai and gguf", "install the extra", COMMAND) from None
    source, folder = Path(payload["path"]), Path(payload["folder"])
    staging = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        # It writes beside the file that it reads: a link keeps that out of the user's folder.
        link = staging / "model.gguf"
        link.symlink_to(source)
        scope.progress(None, f"converting {source.name}")
        try:
            openvino_genai.LLMPipeline(str(link), "CPU", enable_save_ov_model=True)
        except Exception as error:
            text = " ".join(line for line in str(error).split("\n") if not line.startswith("Exception from ")).strip()
            raise InvalidInput(
                f"OpenVINO GenAI cannot read {source.name}: {text[:300] or type(error).__name__}",
                "it reads Llama, Qwen2 and Qwen3 models in Q4_0, Q4_1, Q4_K_M, Q6_K, Q8_0 and F16",
            ) from None
        link.unlink()
        scope.progress(None, f"checking the weights of {source.name}")
        _corrected(staging / "openvino_model.xml", staging / f"{source.stem}.xml", source)
        missing = [n for n in (TOKENIZER, DETOKENIZER) if not (staging / f"{n}.xml").is_file()]
        if missing:
            raise Failed(f"OpenVINO GenAI wrote no {missing[0]} for {source.name}", "the file holds no tokenizer")
        shutil.rmtree(folder, ignore_errors=True)
        staging.rename(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _corrected(written: Path, path: Path, source: Path) -> None:
    """Move the model that GenAI wrote to `path`, its weights corrected where it rounded them."""
    import openvino as ov

    from hasten.intake.gguf_exact import correct

    model = ov.Core().read_model(written)
    if correct(model, source):
        ov.save_model(model, path, compress_to_fp16=False)
        del model
        for suffix in (".xml", ".bin"):
            written.with_suffix(suffix).unlink()
        return
    del model
    for suffix in (".xml", ".bin"):
        written.with_suffix(suffix).rename(path.with_suffix(suffix))
