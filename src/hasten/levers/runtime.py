"""Which runtime executes the model and on which device, at full precision or at the fastest that it has units for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from hasten.levers.base import Case, Prediction, Proposal, SettingsLever
from hasten.levers.prediction import (
    CONVOLUTIONS,
    MATMULS,
    accelerator_of,
    faster_arithmetic,
    format_of,
    is_small,
    looks_like_transformer,
    quantises,
    rate,
    runtime_of,
)
from hasten.runtimes import Availability

FULL_PRECISION = Prediction(1.1, "prior: another runtime's kernels at full precision (0.6x to 2x measured)")
SELDOM_FASTER = {
    "iree": Prediction(0.6, "prior: IREE's kernels on x86 processors, 0.1x to 0.75x of ONNX Runtime's where measured")
}
"""Runtimes that are tried last, in time that is left."""
WORTH_TRYING = 1.2
ON_GPU = {"fp16": 8.0, "bf16": 8.0, "tf32": 6.0, "fp32": 4.0, None: 4.0}
"""Priors of a GPU beside the CPU's cores: upper estimates, as nothing of the GPU was measured before."""
COMPUTES = {
    ("onnxruntime", "tensorrt"): ("fp16", "bf16", "fp32"),
    ("onnxruntime", "cuda"): ("tf32", "fp32"),
    ("torch", "cuda"): ("fp16", "bf16", "fp32"),
}
"""The precisions that are worth trying on each device; a plugin's is left to its default."""
CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})
CAPTURED = Prediction(1.05, "prior: kernels launched together, where they are long")
CAPTURED_SMALL = Prediction(1.5, "prior: launching kernels takes longer than a small model's arithmetic on a GPU")
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
ACCEPTS = {"iree": ("onnx",), "onnxruntime": ("onnx",), "openvino": ("onnx", "openvino"), "torch": ("pt2", "torch")}
"""The formats that each built-in runtime reads; a plugin's runtime answers for itself."""


class RuntimeChoice(SettingsLever):
    name = "runtime"

    def refuse(self, case: Case) -> str | None:
        if quantises(case.recipe):
            return "the quantised file belongs to the runtime that it was made for"
        if any(step.lever == "fuse" and step.options.get("transformer") for step in case.recipe.steps):
            return "the fused operators run on ONNX Runtime alone"
        if accelerator_of(case.recipe):
            return _uncapturable(case)
        if not self._others(case) and not self._devices(case):
            return "no other usable runtime reads this model"
        return None

    def propose(self, case: Case) -> Iterable[Proposal]:
        if self.refuse(case):
            return
        if accelerator_of(case.recipe):
            gain = CAPTURED_SMALL if is_small(case) else CAPTURED
            recipe = case.recipe.edit("runtime", cuda_graph=True)
            yield Proposal(recipe, gain, "launch all kernels of a batch at once", self.name)
            return
        yield from self._accelerated(case)
        for name in self._others(case):
            if name == "openvino":
                yield from self._openvino(case)
            else:
                recipe = case.recipe.edit("runtime", name=name, precision=None)
                late = name in SELDOM_FASTER and len(case.runtimes) > 1  # alone, it was asked for by name
                gain = SELDOM_FASTER[name] if late else FULL_PRECISION
                yield Proposal(recipe, gain, f"execute on {name}", self.name, late)

    def _openvino(self, case: Case) -> Iterable[Proposal]:
        # precision is always written down: OpenVINO's default is bf16 on some processors and fp32 on others
        if rate(case.device, "bf16") > WORTH_TRYING and not _is_classic(case):
            gain = faster_arithmetic(case, CONVOLUTIONS | MATMULS, "bf16")
            why = "execute on OpenVINO in bf16, which this processor multiplies faster"
            yield Proposal(case.recipe.edit("runtime", name="openvino", precision="bf16"), gain, why, self.name)
        recipe = case.recipe.edit("runtime", name="openvino", precision="fp32")
        yield Proposal(recipe, FULL_PRECISION, f"OpenVINO's kernels{_for(case)}, at full precision", self.name)

    def _accelerated(self, case: Case) -> Iterable[Proposal]:
        """The same model on each GPU device at each precision, with none of the CPU's settings."""
        found = []
        for name, device in self._devices(case):
            for precision in COMPUTES.get((name, device), (None,)):
                chosen = {"name": name, "device": device} | ({"precision": precision} if precision else {})
                gain = Prediction(ON_GPU[precision], "prior: a GPU beside these cores")
                why = f"execute on the GPU by {name} ({device})" + (f" in {precision}" if precision else "")
                found.append(Proposal(replace(case.recipe, runtime=chosen), gain, why, self.name))
        yield from sorted(found, key=lambda proposal: -proposal.gain.factor)

    def _devices(self, case: Case) -> list[tuple[str, str]]:
        """Pairs of a runtime that reads the model and a device beside the CPU that it can use here."""
        return [
            (name, device)
            for name in case.runtimes
            if _reads(case, name)
            for device, available in _devices_of(name).items()
            if available.usable and not _could_not_load(case, name, device)
        ]

    def _others(self, case: Case) -> list[str]:
        return [
            name
            for name in case.runtimes
            if name != runtime_of(case) and _reads(case, name) and not _could_not_load(case, name)
        ]


def _is_classic(case: Case) -> bool:
    return not CLASSIC.isdisjoint(case.workload.model.facts.kinds)


def _reads(case: Case, name: str) -> bool:
    return format_of(case) in ACCEPTS.get(name, _accepts(name))


def _uncapturable(case: Case) -> str | None:
    """Why a batch on the GPU cannot be captured as a CUDA graph, or has been; None where it can."""
    if runtime_of(case) != "onnxruntime":
        return f"{runtime_of(case)} launches kernels by itself"
    if case.recipe.runtime.get("cuda_graph"):
        return "the recipe captures its batches already"
    if case.lengths:
        return "batches vary in shape, and a captured one is of one shape"
    if int(case.recipe.runtime.get("streams", 1)) > 1:
        return "a captured batch runs alone"
    if not CONTROL_FLOW.isdisjoint(case.workload.model.facts.kinds):
        return "a graph with branches cannot be captured"
    return None


def _could_not_load(case: Case, name: str, device: str | None = None) -> bool:
    """Whether a trial has shown that the runtime does not read what these steps make."""
    return any(
        trial.status == "failed"
        and trial.recipe.runtime.get("name") == name
        and trial.recipe.runtime.get("device") == device
        and (trial.recipe.steps == case.recipe.steps or _is_classic(case))
        and trial.reason.startswith(f"{name} cannot load")
        for trial in case.trials
    )


def _accepts(name: str) -> frozenset[str]:
    from hasten.runtimes import all_runtimes

    found = all_runtimes().get(name)
    return frozenset() if found is None else frozenset(found.accepts)


def _devices_of(name: str) -> Mapping[str, Availability]:
    from hasten.runtimes import all_runtimes, devices_of

    found = all_runtimes().get(name)
    return {} if found is None else devices_of(found)


def _for(case: Case) -> str:
    if looks_like_transformer(case):
        return " for transformers"
    convolves = any(kind.lower() in CONVOLUTIONS for kind in case.workload.model.facts.kinds)
    return " for convolutions" if convolves else ""
