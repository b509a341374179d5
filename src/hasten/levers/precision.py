"""Inference precision: bf16 or fp16 arithmetic for what is not quantised, chosen by the runtime from fp32 weights."""

from __future__ import annotations

from collections.abc import Iterable

from hasten.levers.base import Case, Prediction, Proposal, SettingsLever
from hasten.levers.prediction import (
    CONVOLUTIONS,
    MATMULS,
    accelerator_of,
    faster_arithmetic,
    looks_like_transformer,
    precision_of,
    quantises,
    rate,
    runtime_of,
)

WORTH_TRYING = 1.2
OFFERS = {"onnxruntime": ("fp32",), "openvino": ("fp32", "bf16", "fp16")}
"""What the built-in runtimes compute in on a CPU; a plugin's runtime answers for itself."""
BESIDE_INT8 = Prediction(1.1, "prior: what INT8 leaves over, in bf16 (1.35x became 1.79x on a detector)")


class Precision(SettingsLever):
    name = "precision"
    programs = frozenset({"single", "generate", "encoder_decoder"})

    def refuse(self, case: Case) -> str | None:
        if accelerator_of(case.recipe):
            return "the lever runtime proposes what a GPU computes in"
        if len(_offers(runtime_of(case))) < 2:
            return f"{runtime_of(case)} computes in fp32 alone here"
        if not any(True for _ in self._choices(case)):
            return f"no precision is faster than {precision_of(case)} on this processor by more than a fifth"
        return None

    def propose(self, case: Case) -> Iterable[Proposal]:
        if self.refuse(case):
            return
        found = []
        for precision in self._choices(case):
            gain = BESIDE_INT8 if quantises(case.recipe) else self._gain(case, precision)
            recipe = case.recipe.edit("runtime", precision=precision)
            found.append(Proposal(recipe, gain, f"compute in {precision} instead of {precision_of(case)}", self.name))
        yield from sorted(found, key=lambda proposal: -proposal.gain.factor)

    def _gain(self, case: Case, precision: str) -> Prediction:
        return faster_arithmetic(case, CONVOLUTIONS | MATMULS, precision)

    def _choices(self, case: Case) -> Iterable[str]:
        now = precision_of(case)
        for precision in ("bf16", "fp16"):
            if precision == now or precision not in _offers(runtime_of(case)):
                continue
            if precision == "fp16" and looks_like_transformer(case):
                continue  # OpenVINO's fp16 ran transformers at 0.29x of bf16 where fp16 has no matrix instructions
            if rate(case.device, precision) > WORTH_TRYING * rate(case.device, now):
                yield precision


def _offers(name: str) -> tuple[str, ...]:
    if name in OFFERS:
        return OFFERS[name]
    from hasten.runtimes import all_runtimes

    found = all_runtimes().get(name)
    return ("fp32",) if found is None else tuple(found.precisions)
