"""The decoder built once more from its Hugging Face folder, as ONNX: so that ONNX Runtime GenAI can run it."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hasten.errors import Failed, InvalidInput
from hasten.intake.causal import beside, digest_of
from hasten.levers.base import Case, Need, Prediction, Proposal
from hasten.levers.modelfile import fresh_folder, options_of, part_of
from hasten.recipe import Step
from hasten.variant import Program, Variant

RUNTIME = "onnxruntime_genai"
PRECISIONS = {32: "fp32", 8: "int8", 4: "int4"}
DEFAULTS = {"bits": 4}
PRIORS = {
    32: Prediction(1.02, "prior: another runtime's kernels at full precision"),
    4: Prediction(1.15, "prior: ONNX Runtime's kernels for weights of 4 bits"),
}


class OnnxDecoder:
    """`bits` are those of the weights. The tokenizer stays, and so do the tokens that perplexities are made of."""

    name = "onnx_decoder"
    needs: frozenset[Need] = frozenset({Need.TORCH})
    programs: frozenset[Program] = frozenset({"generate"})
    converts: Mapping[str, tuple[str, ...]] = {"openvino": ("onnx-genai",)}

    def refuse(self, case: Case) -> str | None:
        if RUNTIME not in case.runtimes:
            return "ONNX Runtime GenAI is not installed"
        if case.recipe.steps:
            return "other steps have changed the model already"
        if not beside(case.workload.model.path).exists():
            return "the model did not come as a Hugging Face folder"
        return None

    def propose(self, case: Case) -> Iterable[Proposal]:
        if self.refuse(case):
            return
        drop: dict[str, Any] = {key: None for key in case.recipe.runtime if key not in ("name", "threads", "streams")}
        for bits, prior in sorted(PRIORS.items()):
            recipe = case.recipe.with_step(Step(self.name, {"bits": bits})).edit("runtime", **drop | {"name": RUNTIME})
            why = f"built as ONNX with weights of {bits} bits, for ONNX Runtime GenAI"
            yield Proposal(recipe, prior, why, self.name)

    def apply(self, variant: Variant, step: Step, case: Case) -> Variant:
        from hasten.runtimes.onnxruntime_genai import GENAI_CONFIG

        bits = options_of(step, DEFAULTS)["bits"]
        if bits not in PRECISIONS:
            raise InvalidInput(f"onnx_decoder has no {bits}-bit weights", "use bits = 32, 8 or 4")
        decoder = part_of(variant, step)
        source = beside(decoder.path)
        if not source.is_dir():
            raise Failed("the folder that the model came as is not there", "read it again with hasten optimize")
        source = source.resolve()
        if not decoder.path.parent.name.startswith(digest_of(source)[:24]):
            raise Failed(f"{source.name} was changed since it was read", "run hasten optimize again")
        folder = fresh_folder(case.workdir, self.name)
        build(source, folder, PRECISIONS[bits])
        files = sorted(path for path in folder.iterdir() if path.name.startswith("model.onnx"))
        digest = hashlib.sha256()
        for path in (folder / GENAI_CONFIG, *files):
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        facts = replace(decoder.facts, size_bytes=sum(path.stat().st_size for path in files), producer=RUNTIME)
        model = replace(
            decoder, path=folder / GENAI_CONFIG, format="onnx-genai", sha256=digest.hexdigest(), facts=facts
        )
        return variant.with_part(step.part, model)


def build(source: Path, folder: Path, precision: str) -> None:
    """Write the decoder in the folder `source` to `folder`, by ONNX Runtime GenAI's model builder.

    There is no network, and no code of the folder's own is run. Raises `Failed` for families that the builder does not
    know.
    """
    from hasten.runtimes.onnxruntime_genai import import_genai

    import_genai()
    os.environ["HF_HUB_OFFLINE"] = "1"  # this is a worker, which ends with the step
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            from onnxruntime_genai.models import builder

            chosen = ("", str(source), str(folder), precision, "cpu", str(folder / "cache"))
            builder.create_model(*chosen, **builder.parse_extra_options(*chosen, ["hf_token=false"]))
    except (Exception, SystemExit) as error:
        text = " ".join(str(error).split())[:300] or type(error).__name__
        raise Failed(f"ONNX Runtime GenAI cannot build {source.name}: {text}") from None
    if not (folder / "model.onnx").is_file():
        raise Failed(f"ONNX Runtime GenAI built no model of {source.name}", "its builder may not know this family")
