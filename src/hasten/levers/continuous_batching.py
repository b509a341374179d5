"""Continuous batching over paged keys and values: prompts join and leave while others are decoded, unpadded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hasten.levers.base import Case, Prediction, Proposal, SettingsLever
from hasten.levers.prediction import accelerator_of, format_of, runtime_of

RUNTIME = "openvino_genai"
TOGETHER = 8
ALONE = Prediction(1.02, "prior: the same kernels, beside another attention")
JOINED = Prediction(1.3, "prior: no padding, and no answer waits for a longer one")


class ContinuousBatching(SettingsLever):
    """OpenVINO GenAI schedules the answers: what feeds a model token by token is left out."""

    name = "continuous_batching"
    programs = frozenset({"generate"})

    def refuse(self, case: Case) -> str | None:
        if RUNTIME not in case.runtimes:
            return "OpenVINO GenAI is not installed"
        if runtime_of(case) != "openvino" or format_of(case) != "openvino" or accelerator_of(case.recipe):
            return "OpenVINO does not execute this recipe on the CPU"
        if case.recipe.runner.get("lookup") or case.recipe.runner.get("prefix"):
            return "drafts and remembered beginnings feed the model token by token"
        return None

    def propose(self, case: Case) -> Iterable[Proposal]:
        if self.refuse(case):
            return
        moved = case.recipe.edit("runtime", name=RUNTIME, streams=None, **_dropped(case.recipe.runtime))
        if case.workload.scenario == "single-stream":
            yield Proposal(moved, ALONE, "paged attention, executed by OpenVINO GenAI", self.name)
            return
        together = max(int(case.recipe.runner.get("batch", 1)), min(TOGETHER, case.workload.samples.count))
        recipe = moved.edit("runner", batch=together, sort=None)
        why = f"{together} prompts under way at once, each joining as another ends, by OpenVINO GenAI"
        yield Proposal(recipe, JOINED, why, self.name)


def _dropped(runtime: Mapping[str, Any]) -> dict[str, None]:
    """Options of OpenVINO that OpenVINO GenAI does not have."""
    return {key: None for key in ("hint", "mmap") if key in runtime}
