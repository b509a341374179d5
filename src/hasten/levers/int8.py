"""Static INT8: post-training quantisation calibrated on the user's samples by the toolchain of the recipe's runtime."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from typing import Any

from hasten.errors import InvalidInput
from hasten.levers import int8_onnx, int8_openvino
from hasten.levers.base import Case, Need, Prediction, Proposal
from hasten.levers.calibration import calibration_batches
from hasten.levers.modelfile import fresh_folder, options_of, part_of, read_openvino, same_signature, save_openvino
from hasten.levers.prediction import (
    CONVOLUTIONS,
    MATMULS,
    accelerator_of,
    default_runtime,
    faster_arithmetic,
    format_of,
    has_attention,
    quantised_already,
    quantises,
    runtime_of,
    smaller,
)
from hasten.recipe import Step
from hasten.variant import Variant

RUNTIMES = ("openvino", "onnxruntime")
WORTH_TRYING = 1.03
MENDS = 3.0
"""A finer calibration mends a loss of up to so many times the allowed one. EfficientNet-Lite0 lost 12.7 points plainly,
14.7 with full bias correction and 14.7 with SmoothQuant: a few operators were to blame for all of it."""

DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "openvino": {
        "scheme": "mixed",
        "transformer": False,
        "smooth": None,
        "bias_correction": "fast",
        "range": "default",
        "samples": 100,
        "keep": [],
    },
    "onnxruntime": {
        "scheme": "mixed",
        "transformer": False,
        "range": "minmax",
        "per_channel": True,
        "reduce_range": False,
        "samples": 100,
        "keep": [],
    },
}
"""Every option and its default, by runtime.

scheme: mixed is symmetric weights and asymmetric activations, performance is symmetric both. smooth: SmoothQuant's
alpha, -1 for none. range: how activation ranges are found. bias_correction: fast, full or off. keep: patterns of
operators that stay at the runtime's precision. transformer: quantise what transformers bear.
"""

# Measured on MiniLM with pooling in the graph, 200 mixed-length texts, mean cosine to fp32 (min): mixed 0.9944 (.985),
# performance 0.9936; NNCF's own alpha of 0.95 beats 0.15 (.987), 0.3 (.989), 0.5 (.990), 0.6 (.993) and none (.992);
# quantile ranges 0.9897; without transformer=true 0.847: broken. Bias correction changes nothing (0.9945
# without). With 80 mixed calibration texts the plain set gives 0.9970 (.994). ONNX Runtime's QDQ stays at 0.92 to 0.94
# there whatever the method: its activations share one scale and it has no SmoothQuant. PP-OCRv4's recogniser, whose
# attention is in pieces among convolutions: 0.969 of characters agree with transformer=true, 0.953 without.


class Int8:
    name = "int8"
    needs = frozenset({Need.CALIBRATION})

    def refuse(self, case: Case) -> str | None:
        """Why nothing is proposed, or None."""
        if accelerator_of(case.recipe):
            return "INT8 is calibrated for the CPU's kernels"
        if quantised_already(case):
            return "the model came quantised"
        if quantises(case.recipe):
            return "the recipe quantises already"
        if runtime_of(case) not in RUNTIMES:
            return f"there is no INT8 toolchain for {runtime_of(case)}"
        if runtime_of(case) == "onnxruntime" and format_of(case) != "onnx":
            return f"ONNX Runtime does not read {format_of(case)} models"
        if not case.split.calibration:
            return "there are too few samples to calibrate with"
        if any(step.lever == "fuse" and step.options.get("transformer") for step in case.recipe.steps):
            return "the quantisers do not see into ONNX Runtime's fused transformer operators"
        if not any(kind.lower() in CONVOLUTIONS | MATMULS for kind in case.workload.model.facts.kinds):
            return "the model has no convolution or matrix multiplication"
        if self._gain(case).factor < WORTH_TRYING:
            return f"INT8 arithmetic would not pay here ({self._gain(case).source})"
        return None

    def propose(self, case: Case) -> Iterable[Proposal]:
        if self.refuse(case):
            return
        gain = self._gain(case)
        for options, why in choices(case):
            recipe = case.recipe.with_step(Step(self.name, options))
            yield Proposal(recipe, gain, why, self.name)

    def _gain(self, case: Case) -> Prediction:
        if case.goal.figure == "size_mb":
            return smaller(case, 1.0)
        return faster_arithmetic(case, CONVOLUTIONS | MATMULS, "int8")

    def apply(self, variant: Variant, step: Step, case: Case) -> Variant:
        from hasten import formats

        model = part_of(variant, step)
        runtime = str(case.recipe.runtime.get("name") or default_runtime(model.format))
        if runtime not in RUNTIMES:
            raise InvalidInput(f"lever int8 has no toolchain for {runtime}", f"use one of: {', '.join(RUNTIMES)}")
        options = options_of(step, dict(DEFAULTS[runtime]))
        batches = calibration_batches(case, model.signature, int(options["samples"]))
        folder = fresh_folder(case.workdir, self.name)
        if runtime == "openvino":
            quantised = int8_openvino.quantise(read_openvino(model), batches, options)
            path = save_openvino(quantised, folder / "model.xml")
        else:
            if model.format != "onnx":
                raise InvalidInput(f"ONNX Runtime does not read {model.format} models", 'use name = "openvino"')
            scratch = fresh_folder(folder, "scratch")
            prepared = int8_onnx.prepare(model.path, scratch)
            path = int8_onnx.quantise(prepared, folder / "model.onnx", batches, options)
            shutil.rmtree(scratch)
        return variant.with_part(step.part, same_signature(model, formats.inspect(path), self.name))


def choices(case: Case) -> Iterable[tuple[dict[str, Any], str]]:
    """Option sets, best first: the plain one, and the careful ones once a plain one lost too much quality."""
    transformer = has_attention(case)
    marked: dict[str, Any] = {"transformer": True} if transformer else {}
    onnx = runtime_of(case) == "onnxruntime"
    tried = [
        trial.measurement.quality
        for trial in case.trials
        if trial.status in ("rejected", "undecided") and "quality" in trial.reason.lower()
        for step in trial.recipe.steps
        if step.lever == "int8"
    ]
    allowed = case.goal.max_drop.amount
    plain = {"scheme": "mixed", **marked}
    bears = ", as a transformer bears them" if transformer else ""
    yield plain, f"INT8 weights and activations, calibrated on the samples{bears}"
    if not any(quality is None or quality.drop.value <= MENDS * allowed for quality in tried):
        return
    if onnx:
        yield {**plain, "range": "percentile"}, "INT8 with activation ranges that ignore rare outliers"
        yield {**plain, "range": "entropy"}, "INT8 with activation ranges that keep the most information"
    else:
        yield {**plain, "bias_correction": "full"}, "INT8 with the slower, more exact bias correction"
        yield {**plain, "smooth": 0.5, "samples": 300}, "INT8 with outliers moved into the weights, more samples"
