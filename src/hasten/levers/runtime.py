"""Which runtime executes the model, at full precision or at the fastest that the device has instructions for."""

from __future__ import annotations

from collections.abc import Iterable

from hasten.levers.base import Case, Prediction, Proposal, SettingsLever
from hasten.levers.prediction import (
    CONVOLUTIONS,
    MATMULS,
    faster_arithmetic,
    format_of,
    looks_like_transformer,
    quantises,
    rate,
    runtime_of,
)

FULL_PRECISION = Prediction(1.1, "prior: another runtime's kernels at full precision (0.6x to 2x measured)")
WORTH_TRYING = 1.2
CLASSIC = frozenset(
    {
        "ArrayFeatureExtractor",
        "Binarizer",
        "CategoryMapper",
        "Imputer",
        "LabelEncoder",
        "LinearClassifier",
        "Normalizer",
    }
    | {"LinearRegressor", "OneHotEncoder", "SVMClassifier", "SVMRegressor", "Scaler", "TfIdfVectorizer", "TreeEnsemble"}
    | {"TreeEnsembleClassifier", "TreeEnsembleRegressor"}
)
"""Operators of converted estimators, which OpenVINO does not have: it is tried once, and no lever takes them away."""
ACCEPTS = {"onnxruntime": ("onnx",), "openvino": ("onnx", "openvino")}
"""The formats that each built-in runtime reads; a plugin's runtime answers for itself."""


class RuntimeChoice(SettingsLever):
    name = "runtime"

    def refuse(self, case: Case) -> str | None:
        if quantises(case.recipe):
            return "the quantised file belongs to the runtime that it was made for"
        if any(step.lever == "fuse" and step.options.get("transformer") for step in case.recipe.steps):
            return "the fused operators run on ONNX Runtime alone"
        if not self._others(case):
            return "no other usable runtime reads this model"
        return None

    def propose(self, case: Case) -> Iterable[Proposal]:
        if self.refuse(case):
            return
        for name in self._others(case):
            if name == "openvino":
                yield from self._openvino(case)
            else:
                recipe = case.recipe.edit("runtime", name=name, precision=None)
                yield Proposal(recipe, FULL_PRECISION, f"execute on {name}", self.name)

    def _openvino(self, case: Case) -> Iterable[Proposal]:
        # precision is always written down: OpenVINO's default is bf16 on some processors and fp32 on others
        if rate(case.device, "bf16") > WORTH_TRYING and not _is_classic(case):
            gain = faster_arithmetic(case, CONVOLUTIONS | MATMULS, "bf16")
            why = "execute on OpenVINO in bf16, which this processor multiplies faster"
            yield Proposal(case.recipe.edit("runtime", name="openvino", precision="bf16"), gain, why, self.name)
        recipe = case.recipe.edit("runtime", name="openvino", precision="fp32")
        yield Proposal(recipe, FULL_PRECISION, f"OpenVINO's kernels{_for(case)}, at full precision", self.name)

    def _others(self, case: Case) -> list[str]:
        model_format = format_of(case)
        return [
            name
            for name in case.runtimes
            if name != runtime_of(case)
            and model_format in ACCEPTS.get(name, _accepts(name))
            and not _could_not_load(case, name)
        ]


def _is_classic(case: Case) -> bool:
    return not CLASSIC.isdisjoint(case.workload.model.facts.kinds)


def _could_not_load(case: Case, name: str) -> bool:
    """Whether a trial has shown that the runtime does not read what these steps make."""
    return any(
        trial.status == "failed"
        and trial.recipe.runtime.get("name") == name
        and (trial.recipe.steps == case.recipe.steps or _is_classic(case))
        and trial.reason.startswith(f"{name} cannot load")
        for trial in case.trials
    )


def _accepts(name: str) -> frozenset[str]:
    from hasten.runtimes import all_runtimes

    found = all_runtimes().get(name)
    return frozenset() if found is None else frozenset(found.accepts)


def _for(case: Case) -> str:
    if looks_like_transformer(case):
        return " for transformers"
    convolves = any(kind.lower() in CONVOLUTIONS for kind in case.workload.model.facts.kinds)
    return " for convolutions" if convolves else ""
