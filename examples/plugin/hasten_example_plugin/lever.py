"""A lever that lets ONNX Runtime treat denormal numbers as zero: they cost up to a hundred times a normal number."""

from __future__ import annotations

from collections.abc import Iterable

from hasten.levers.base import Case, Need, Prediction, Proposal
from hasten.recipe import Step
from hasten.variant import Variant

_KEY = "session.set_denormal_as_zero"


class FlushDenormals:
    """Edits `[runtime]` only, so there is no step to apply."""

    name = "flush-denormals"
    needs: frozenset[Need] = frozenset()

    def propose(self, case: Case) -> Iterable[Proposal]:
        runtime = case.recipe.runtime
        raw = runtime.get("session", {})
        if runtime.get("name", "onnxruntime") != "onnxruntime" or _KEY in raw:
            return
        yield Proposal(
            case.recipe.edit("runtime", name="onnxruntime", session={**raw, _KEY: "1"}),
            Prediction(1.01, "a guess: most models have few denormals, and then it changes nothing"),
            "denormal numbers are slow, and zero serves as well",
            self.name,
        )

    def apply(self, variant: Variant, step: Step, case: Case) -> Variant:
        return variant
