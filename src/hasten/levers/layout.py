"""Channels-last: asks an accelerator's kernels for the layout that they are fastest in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hasten.levers.base import Case, Prediction, Proposal, SettingsLever
from hasten.levers.prediction import CONVOLUTIONS, accelerator_of, amdahl, runtime_of, share_of, sober

CUDA = "CUDAExecutionProvider"
CHANNELS_LAST_RATIO = 1.3

# On the CPU there is nothing honest to propose: ONNX Runtime's fp32 convolutions run in its own blocked NCHWc layout,
# its INT8 ones in NHWC, and OpenVINO's oneDNN chooses blocked or channels-last for each primitive, whatever the file
# says. Transposes inserted into the file only add copies at the border, and the caller's data must stay as it is.


class Layout(SettingsLever):
    name = "layout"

    def refuse(self, case: Case) -> str | None:
        if not any(kind.lower() in CONVOLUTIONS for kind in case.workload.model.facts.kinds):
            return "the model has no convolution"
        if runtime_of(case) != "onnxruntime" or CUDA not in _providers(case):
            return f"{runtime_of(case)} chooses each kernel's layout by itself on the CPU"
        if "prefer_nhwc" in _tables(case).get(CUDA, {}):
            return "the recipe is channels-last already"
        return None

    def propose(self, case: Case) -> Iterable[Proposal]:
        if self.refuse(case):
            return
        share = sober(case, share_of(case, CONVOLUTIONS))
        gain = Prediction(
            amdahl(share, CHANNELS_LAST_RATIO),
            f"prior: tensor cores read channels-last, {share:.0%} of time in convolutions",
        )
        tables = _tables(case)
        edited = {**tables, CUDA: {**tables.get(CUDA, {}), "prefer_nhwc": "1"}}
        recipe = case.recipe.edit("runtime", provider_options=edited)
        yield Proposal(recipe, gain, "channels-last convolutions on tensor cores", self.name)


def _providers(case: Case) -> list[str]:
    if accelerator_of(case.recipe) == "cuda":
        return [CUDA]
    providers = case.recipe.runtime.get("providers", [])
    listed = providers if isinstance(providers, list | tuple) else [providers]
    return [str(p[0] if isinstance(p, list | tuple) else p) for p in listed]


def _tables(case: Case) -> dict[str, Any]:
    return dict(case.recipe.runtime.get("provider_options", {}))
