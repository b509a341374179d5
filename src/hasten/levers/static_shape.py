"""Static shapes: the runtime compiles for one fixed batch and plans its memory and kernels once."""

from __future__ import annotations

from collections.abc import Iterable

from hasten.levers.base import Case, Prediction, Proposal, SettingsLever


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
            Prediction(1.05, "prior: OpenVINO specialises kernels for static shapes"),
            "compile for the fixed shape of a batch",
            self.name,
        )
