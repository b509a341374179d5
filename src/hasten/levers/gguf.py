"""The GGUF file as it was brought, in place of the decoder made from it: so that llama.cpp can run it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from hasten.data import SampleSet
from hasten.errors import Failed, InvalidInput
from hasten.intake.gguf import beside
from hasten.levers.base import Case, Need, Prediction, Proposal
from hasten.levers.modelfile import part_of
from hasten.recipe import Step
from hasten.variant import Program, Variant

PRIOR = Prediction(1.1, "prior: llama.cpp's kernels for weights of few bits")
RUNTIME = "llamacpp"
PROBES = 8


class Gguf:
    """Its tokenizer comes with it, and must give the tokens that the other gives: else perplexities do not compare."""

    name = "gguf"
    needs: frozenset[Need] = frozenset()
    programs: frozenset[Program] = frozenset({"generate"})
    converts: Mapping[str, tuple[str, ...]] = {"openvino": ("gguf",)}

    def refuse(self, case: Case) -> str | None:
        if RUNTIME not in case.runtimes:
            return "llama.cpp is not installed"
        if case.recipe.steps:
            return "other steps have changed the model already"
        if not beside(case.workload.model.path).exists():
            return "the model did not come as a GGUF file"
        return None

    def propose(self, case: Case) -> Iterable[Proposal]:
        if self.refuse(case):
            return
        drop: dict[str, Any] = {key: None for key in case.recipe.runtime if key not in ("name", "threads", "streams")}
        recipe = case.recipe.with_step(Step(self.name)).edit("runtime", **drop | {"name": RUNTIME})
        yield Proposal(recipe, PRIOR, "the GGUF file as it came, executed on llama.cpp", self.name)

    def apply(self, variant: Variant, step: Step, case: Case) -> Variant:
        from hasten.runtimes.base import language_of, runtime

        if step.options:
            raise InvalidInput(f"gguf has no option {next(iter(step.options))!r}", "leave it out")
        decoder, words = part_of(variant, step), variant.parts.get("tokenizer")
        path = beside(decoder.path)
        if words is None or not path.exists():
            raise Failed("the GGUF file that the model came as is not there", "read it again with hasten optimize")
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if not path.parent.name.startswith(digest[:24]):
            raise Failed(f"{path.resolve().name} was changed since it was read", "run hasten optimize again")
        ours = language_of(runtime(RUNTIME)).tokenizer(path)
        theirs = language_of(runtime("openvino")).tokenizer(words.path)
        known = SampleSet.open(case.workload.samples.path)
        for index in case.split.calibration[:PROBES]:
            text = str(known[index]["text"])
            if ours.encode(text).tolist() != theirs.encode(text).tolist():
                raise Failed("llama.cpp's tokenizer gives other tokens than OpenVINO's, so figures would not compare")
        facts = replace(decoder.facts, size_bytes=path.stat().st_size, producer="GGUF")
        model = replace(decoder, path=path, format="gguf", sha256=digest, facts=facts)
        return variant.with_part(step.part, model).with_part("tokenizer", model)
