"""Hugging Face folders of decoder language models, with their tokenizer.

The result is what a GGUF file becomes: an OpenVINO decoder with its tokenizer and detokenizer beside it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.errors import Failed, InvalidInput
from hasten.intake import huggingface
from hasten.intake.gguf import DETOKENIZER, TOKENIZER
from hasten.isolate import Limits, WorkerFailed, run
from hasten.model import Model

if TYPE_CHECKING:
    from hasten.isolate import Scope

COMMAND = "pip install 'hasten[hf,llm]'"
SECONDS = 3600.0
NAMES = ("ForCausalLM", "LMHeadModel")
SAVED = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
PROBES = (
    "The train to the north leaves at seven from the second platform, and 1,024 people are on it.",
    "Grüße: naïve café, 東京!\n\tdef f(x):  return x",
    "once more",
)
"""Texts that the conversion is compared on."""


def is_decoder(folder: Path) -> bool:
    """Whether config.json names a model that goes on from a text; where it names none, whether the folder generates."""
    if not huggingface.is_folder(folder):
        return False
    names = huggingface.read(folder / "config.json").get("architectures")
    if not names:
        return (folder / "generation_config.json").is_file()
    return any(str(name).endswith(NAMES) for name in names)


def load(
    folder: Path, into: Path, *, trust: bool = False, on_progress: Callable[[float | None, str], None] | None = None
) -> Model:
    """The folder's decoder, converted once and kept under `into`.

    Raises `InvalidInput` for folders that are not whole and for models of a kind that is not taken, and `Failed` where
    the conversion gives other logits than transformers does.
    """
    folder = Path(os.path.abspath(folder))  # its own name counts, whatever it links to
    config = huggingface.read(folder / "config.json")
    huggingface.check_code(folder, config, trust)
    if config.get("quantization_config"):
        method = (config["quantization_config"] or {}).get("quant_method", "some method")
        raise InvalidInput(f"the weights in {folder.name} are quantised ({method})", "give the model as it was before")
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        raise InvalidInput(
            f"{folder.name} has no weights in safetensors",
            "save the model again with save_pretrained, which writes them",
        )
    if not (folder / "tokenizer.json").is_file():
        raise InvalidInput(
            f"{folder.name} has no tokenizer.json", "save the tokenizer there with its save_pretrained, or copy it"
        )
    if on_progress is not None:
        on_progress(None, f"reading {folder.name}")
    kept = into / f"{digest_of(folder)[:24]}-{folder.name[:64]}"
    model = kept / f"{folder.name}.xml"
    if not (kept / f"{TOKENIZER}.xml").is_file() or not model.is_file():
        size = sum(path.stat().st_size for path in weights)
        payload = {"source": str(folder), "folder": str(kept), "trust": trust}
        limits = Limits((4 << 30) + 8 * size, SECONDS)
        try:
            run(f"{__name__}:convert", payload, limits, on_progress=on_progress)
        except WorkerFailed as error:
            raise Failed(f"converting {folder.name} failed: {error.outcome.reason}") from None
    link = beside(model)
    if not link.exists() or not link.samefile(folder):
        link.unlink(missing_ok=True)
        link.symlink_to(folder)
    from hasten import formats

    return formats.load(model)


def beside(decoder: Path) -> Path:
    """Where the folder lies that a decoder was made from: a link, which is not there for other decoders."""
    return decoder.with_name(f"{decoder.stem}.folder")


def digest_of(folder: Path) -> str:
    """The SHA-256 of what a conversion reads of `folder`."""
    digest = hashlib.sha256()
    for path in (*(folder / name for name in SAVED), *sorted(folder.glob("*.safetensors"))):
        if path.is_file():
            with path.open("rb") as file:
                digest.update(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()


def convert(payload: dict[str, Any], scope: Scope) -> None:
    """Worker function: the decoder in `source` as OpenVINO models in `folder`, whole or not at all."""
    try:
        import openvino as ov
        import openvino_tokenizers  # noqa: F401  # teaches OpenVINO the operators of text
        import torch  # noqa: F401
        import transformers
    except ImportError as error:
        raise InvalidInput(
            f"Hugging Face folders of language models need {error.name}", "install the extras", COMMAND
        ) from None
    from hasten.intake import causal_graph

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    source, folder = Path(payload["source"]), Path(payload["folder"])
    staging = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        scope.progress(None, f"reading the tokenizer of {source.name}")
        tokenizer = opened(source, payload["trust"])
        for name, part in zip((TOKENIZER, DETOKENIZER), translated(tokenizer, source), strict=True):
            ov.save_model(part, staging / f"{name}.xml")
        scope.progress(None, f"building {source.name}")
        module = built(source, payload["trust"])
        texts = [tokenizer(text).input_ids for text in PROBES]
        wanted = causal_graph.logits_of(module, texts)
        scope.progress(None, f"converting {source.name}")
        graph = causal_graph.graph_of(module, source.name)
        causal_graph.write(graph, staging / f"{source.name}.xml")
        del graph, module
        scope.progress(None, "comparing its logits with those of transformers")
        causal_graph.compare(staging / f"{source.name}.xml", texts, wanted, source.name)
        shutil.rmtree(folder, ignore_errors=True)
        staging.rename(folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def built(folder: Path, trust: bool) -> Any:
    """The model in fp32, all of its weights from the folder."""
    import torch
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=trust)
        capped = getattr(config, "attn_logit_softcapping", None)
        found: Any = transformers.AutoModelForCausalLM.from_pretrained(
            folder, config=config, local_files_only=True, trust_remote_code=trust, use_safetensors=True,
            attn_implementation="eager" if capped else None,  # the fused attention leaves the caps out
            dtype=torch.float32, output_loading_info=True,
        )  # fmt: skip
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        raise InvalidInput(f"transformers cannot read {folder.name}: {type(error).__name__}: {text}") from None
    module, told = found
    missing = sorted(map(str, told["missing_keys"]))
    if missing:
        raise InvalidInput(
            f"the weights in {folder.name} lack {len(missing)} tensors, {missing[0]} among them",
            "copy the folder again",
        )
    return module.eval()


def opened(folder: Path, trust: bool) -> Any:
    """The folder's tokenizer."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=trust)
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        raise InvalidInput(f"the tokenizer in {folder.name} cannot be read: {text}", "copy the folder again") from None


def translated(tokenizer: Any, folder: Path) -> tuple[Any, Any]:
    """Tokenizer and detokenizer as OpenVINO models, which say what ends an answer; the same tokens on the probes."""
    import openvino as ov
    from openvino_tokenizers import convert_tokenizer

    try:
        there, back = convert_tokenizer(tokenizer, with_detokenizer=True)
        encode = ov.Core().compile_model(there, "CPU")
        found = {text: encode([text])["input_ids"][0].tolist() for text in PROBES}
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        raise Failed(f"the tokenizer in {folder.name} has no OpenVINO form: {type(error).__name__}: {text}") from None
    for text, ids in found.items():
        if ids != tokenizer(text).input_ids:
            raise Failed(f"the tokenizer in {folder.name} gives other tokens in OpenVINO, of {text!r} for one")
    ends = ends_of(folder) or [tokenizer.eos_token_id]
    if ends[0] is not None:
        there.set_rt_info(str(ends[0]), "eos_token_id")
        there.set_rt_info(" ".join(map(str, ends)), "end_token_ids")
    return there, back


def ends_of(folder: Path) -> list[int]:
    """The tokens that end an answer, as generation_config.json says, or config.json; empty where neither does."""
    for name in ("generation_config.json", "config.json"):
        told = huggingface.read(folder / name).get("eos_token_id") if (folder / name).is_file() else None
        if told is not None:
            return [int(token) for token in (told if isinstance(told, list) else [told])]
    return []
