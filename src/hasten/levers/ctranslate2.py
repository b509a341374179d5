"""The Hugging Face folder that a model came as, converted to CTranslate2's form: Whisper, and encoders of text."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hasten.errors import Failed, InvalidInput
from hasten.intake import huggingface, speech
from hasten.levers import export
from hasten.levers.base import Case, Need, Prediction, Proposal
from hasten.levers.modelfile import fresh_folder, options_of, part_of
from hasten.model import Facts, Model, Signature
from hasten.recipe import Step
from hasten.runtimes.ctranslate2 import POOLING
from hasten.variant import Program, Variant

RUNTIME = "ctranslate2"
PRIORS = {
    "int8": Prediction(1.3, "prior: CTranslate2's kernels, with weights in 8 bits"),
    "float32": Prediction(1.1, "prior: CTranslate2's kernels"),
}
DEFAULTS = {"quantization": "float32"}
ENCODERS = ("bert", "camembert", "distilbert", "roberta", "xlm-roberta")
"""What config.json calls the encoders that CTranslate2 converts."""
OUTPUTS = frozenset({"last_hidden_state", "pooler_output", "sentence_embedding"})
END = "<|endoftext|>"
"""CTranslate2 looks for the end by this name."""


class CTranslate2:
    """`quantization` is what weights are kept in, by CTranslate2's names."""

    name = "ctranslate2"
    needs: frozenset[Need] = frozenset()
    programs: frozenset[Program] = frozenset({"encoder_decoder", "single"})
    converts: Mapping[str, tuple[str, ...]] = {"openvino": ("ctranslate2",), "pt2": ("ctranslate2",)}

    def refuse(self, case: Case) -> str | None:
        if RUNTIME not in case.runtimes:
            return "CTranslate2 is not installed"
        if case.recipe.steps:
            return "other steps have changed the model already"
        source = huggingface.beside(case.workload.model.path)
        if not source.is_dir():
            return "the model did not come as a Hugging Face folder"
        return None if case.workload.program == "encoder_decoder" else strange(source, case.workload.model)

    def propose(self, case: Case) -> Iterable[Proposal]:
        if self.refuse(case):
            return
        kept = ("name", "threads", "streams")
        plain: dict[str, Any] = {key: None for key in case.recipe.runtime if key not in kept}
        for quantization, prior in PRIORS.items():
            options = {} if quantization == DEFAULTS["quantization"] else {"quantization": quantization}
            recipe = case.recipe.with_step(Step(self.name, options))
            recipe = recipe.edit("runtime", **plain | {"name": RUNTIME, "precision": "fp32"})
            yield Proposal(recipe, prior, f"executed on CTranslate2, weights in {quantization}", self.name)

    def apply(self, variant: Variant, step: Step, case: Case) -> Variant:
        quantization = options_of(step, DEFAULTS)["quantization"]
        model = part_of(variant, step)
        source = huggingface.beside(model.path)
        if not source.is_dir():
            raise Failed("the folder that the model came as is not there", "read it again with hasten optimize")
        convert_one = self._whisper if variant.program == "encoder_decoder" else self._encoder
        return convert_one(variant, source.resolve(), quantization, case)

    def _encoder(self, variant: Variant, source: Path, quantization: str, case: Case) -> Variant:
        """At full precision it must give the outputs of the model as brought, before it is quantised."""
        before = variant.main
        if reason := strange(source, before):
            raise Failed(f"CTranslate2 does not run it: {reason}")
        pooling, normalise = huggingface.pooled(source)
        for each in dict.fromkeys((DEFAULTS["quantization"], quantization)):
            folder = convert(source, fresh_folder(case.workdir, self.name), each)
            if pooling is not None:
                told = json.dumps({"pooling": pooling, "normalise": normalise})
                (folder / POOLING).write_text(told, encoding="utf-8")
            facts = replace(before.facts, producer="CTranslate2")
            model = described(folder / "model.bin", "ctranslate2", before.signature, facts)
            if each == DEFAULTS["quantization"]:
                export.check(before, model, case)
        return variant.with_part("main", model)

    def _whisper(self, variant: Variant, source: Path, quantization: str, case: Case) -> Variant:
        decoder, words = variant.main, variant.parts.get("tokenizer")
        if words is None:
            raise Failed("the model has no rules of decoding beside it", "read it again with hasten optimize")
        if not decoder.path.parent.name.startswith(speech.identity(source)):
            raise Failed(f"{source.name} was changed since it was read", "run hasten optimize again")
        folder = convert(source, fresh_folder(case.workdir, self.name), quantization)
        told = json.loads(words.path.read_text(encoding="utf-8"))
        obey(folder, told)
        filters = folder.with_name(f"{folder.name}-mel") / "mel.npy"
        filters.parent.mkdir()
        write_filters(source, filters)
        parameters = sum(part.facts.parameters for name, part in variant.parts.items() if name in ("main", "encoder"))
        facts = Facts(parameters, 0, None, "CTranslate2", decoder.facts.kinds)
        main = described(folder / "model.bin", "ctranslate2", decoder.signature, facts)
        features = described(filters, "mel", Signature((), ()), Facts(0, 0))
        return replace(variant, parts={"main": main, "features": features, "tokenizer": words})


def strange(source: Path, model: Model) -> str | None:
    """Why CTranslate2 does not run the encoder that came as the folder `source`; None where it does."""
    config = huggingface.read(source / "config.json")
    kind = str(config.get("model_type"))
    if kind not in ENCODERS:
        return f"of encoders it runs {', '.join(ENCODERS)}, and this one is {kind}"
    if config.get("position_embedding_type", "absolute") != "absolute":
        return "its positions are not absolute"
    if {tensor.name for tensor in model.signature.inputs} != {"input_ids", "attention_mask"}:
        return "it takes more than token numbers and their mask"
    other = {tensor.name for tensor in model.signature.outputs} - OUTPUTS
    return f"it gives {min(other)}, and CTranslate2 gives hidden states and their pooling alone" if other else None


def convert(source: Path, folder: Path, quantization: str) -> Path:
    """The Hugging Face folder `source` in CTranslate2's form in `folder`. Runs in a worker, and fetches nothing."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import ctranslate2
    import transformers
    from ctranslate2.converters import TransformersConverter

    known = sorted(ctranslate2.get_supported_compute_types("cpu"))
    if quantization not in known:
        raise InvalidInput(
            f"CTranslate2 does not compute in {quantization!r} here", f"quantization is one of: {', '.join(known)}"
        )
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    config = huggingface.read(source / "config.json")
    with tempfile.TemporaryDirectory(dir=folder.parent) as staging:
        for path in source.iterdir():
            (Path(staging) / path.name).symlink_to(path)
        converter = TransformersConverter(staging)
        if config.get("model_type") in ENCODERS:
            converter.load_tokenizer = lambda *_, **__: Numbers(int(config["vocab_size"]))
            own = Path(staging) / "config.json"  # the converter asks for what transformers 5 no longer writes
            own.unlink()
            own.write_text(json.dumps({"position_embedding_type": "absolute", **config}), encoding="utf-8")
        try:
            converter.convert(str(folder), quantization=quantization, force=True)
        except Exception as error:
            text = " ".join(str(error).split())[:300]
            raise Failed(f"CTranslate2 cannot convert {source.name}: {type(error).__name__}: {text}") from None
    return folder


class Numbers:
    """A tokenizer's place where texts come as token numbers: CTranslate2 wants a name for each."""

    unk_token = "0"

    def __init__(self, count: int) -> None:
        self._count = count

    def get_vocab(self) -> Mapping[str, int]:
        return {str(number): number for number in range(self._count)}


def obey(folder: Path, told: Mapping[str, Any]) -> None:
    """Have the converted model decode by the rules of `speech.json`; its end must be theirs."""
    words = json.loads((folder / "vocabulary.json").read_text(encoding="utf-8"))
    if END not in words or words.index(END) != told["end"]:
        raise Failed(f"CTranslate2 ends an answer with {END}, and this model does not")
    path = folder / "config.json"
    rules = {"suppress_ids": told["suppress"], "suppress_ids_begin": told["suppress_first"]}
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | rules, indent=1), encoding="utf-8")


def write_filters(source: Path, path: Path) -> None:
    """The mel filters of the Hugging Face folder, [bins, 201] in float32."""
    import numpy as np
    import transformers

    extractor = transformers.WhisperFeatureExtractor.from_pretrained(source, local_files_only=True)
    np.save(path, np.ascontiguousarray(np.asarray(extractor.mel_filters).T, np.float32))


def described(path: Path, form: str, signature: Signature, facts: Facts) -> Model:
    """The handle on the files in the folder of `path`, of which a runtime is told `path`."""
    digest, size = hashlib.sha256(), 0
    for file in sorted(path.parent.iterdir()):
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        digest.update(f"{file.name} {content}\n".encode())
        size += file.stat().st_size
    return Model(path, form, digest.hexdigest(), signature, replace(facts, size_bytes=size))
