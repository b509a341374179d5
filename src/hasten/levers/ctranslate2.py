"""The Hugging Face folder converted to CTranslate2's form: so that CTranslate2, which faster-whisper stands on, runs it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hasten.errors import Failed, InvalidInput
from hasten.intake import speech
from hasten.levers.base import Case, Need, Prediction, Proposal
from hasten.levers.modelfile import fresh_folder, options_of, part_of
from hasten.model import Facts, Model, Signature
from hasten.recipe import Step
from hasten.variant import Program, Variant

RUNTIME = "ctranslate2"
PRIORS = {
    "int8": Prediction(1.3, "prior: CTranslate2's kernels, with weights in 8 bits"),
    "float32": Prediction(1.1, "prior: CTranslate2's kernels"),
}
DEFAULTS = {"quantization": "float32"}
END = "<|endoftext|>"
"""CTranslate2 looks for the end by this name."""


class CTranslate2:
    """`quantization` is what weights are kept in, by CTranslate2's names."""

    name = "ctranslate2"
    needs: frozenset[Need] = frozenset()
    programs: frozenset[Program] = frozenset({"encoder_decoder"})
    converts: Mapping[str, tuple[str, ...]] = {"openvino": ("ctranslate2",)}

    def refuse(self, case: Case) -> str | None:
        if RUNTIME not in case.runtimes:
            return "CTranslate2 is not installed"
        if case.recipe.steps:
            return "other steps have changed the model already"
        if not speech.beside(case.workload.model.path).is_dir():
            return "the model did not come as a Hugging Face folder"
        return None

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
        options = options_of(step, DEFAULTS)
        decoder, words = part_of(variant, step), variant.parts.get("tokenizer")
        source = speech.beside(decoder.path)
        if words is None or not source.is_dir():
            raise Failed("the folder that the model came as is not there", "read it again with hasten optimize")
        if not decoder.path.parent.name.startswith(speech.identity(source)):
            raise Failed(f"{source.resolve().name} was changed since it was read", "run hasten optimize again")
        folder = convert(source.resolve(), fresh_folder(case.workdir, self.name), options["quantization"])
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
    try:
        TransformersConverter(str(source)).convert(
            str(folder), quantization=None if quantization == "float32" else quantization, force=True
        )
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        raise Failed(f"CTranslate2 cannot convert {source.name}: {type(error).__name__}: {text}") from None
    return folder


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
