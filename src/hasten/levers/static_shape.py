"""Static shapes: the runtime compiles for one fixed batch and plans its memory and kernels once."""

from __future__ import annotations

from collections.abc import Iterable

from hasten.levers.base import Case, Prediction, Proposal, SettingsLever
from hasten.levers.prediction import is_small

PRIOR = Prediction(1.05, "prior: OpenVINO specialises kernels for static shapes")
ALONE = Prediction(1.12, "prior: 1.05x to 1.2x for one sample at a time")
SMALL = Prediction(1.35, "prior: working shapes out for every call counts beside a small model's arithmetic")


class StaticShape(SettingsLever):
    name = "static_shape"

    def propose(self, case: Case) -> Iterable[Proposal]:
        runner = case.recipe.runner
        if case.lengths or runner.get("static") or case.recipe.runtime.get("name") != "openvino":
            return  # varying lengths belong to the bucket lever; ONNX Runtime plans nothing more for fixed shapes
        shapes = [t.shape for t in case.workload.model.signature.inputs if t.shape]
        if all(isinstance(size, int) for shape in shapes for size in shape):
            return  # they are static already
        yield Proposal(
            case.recipe.edit("runner", static=True),
            SMALL if is_small(case) else ALONE if case.workload.scenario == "single-stream" else PRIOR,
            "compile for the fixed shape of a batch",
            self.name,
        )
