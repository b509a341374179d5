"""Compilation: PyTorch's own compiler, inductor, turns an exported program into fused kernels."""

from __future__ import annotations

from collections.abc import Iterable

from hasten.levers.base import Case, Need, Prediction, Proposal, SettingsLever
from hasten.levers.prediction import looks_like_transformer, runtime_of

GAIN = Prediction(1.5, "prior: fused kernels and repacked weights (1.6 to 2.4x measured over eager bf16)")
TUNED = Prediction(1.1, "prior: the best of several kernels for each product, at minutes of compiling")
LEAST_S = 240.0
"""Compiling takes minutes: with a smaller budget it would eat what the other levers need."""
TUNING_S = 600.0


class Compile(SettingsLever):
    name = "compile"
    needs = frozenset({Need.TORCH})

    def refuse(self, case: Case) -> str | None:
        if runtime_of(case) != "torch":
            return f"{runtime_of(case)} compiles by itself"
        from hasten.runtimes.torch import compiles

        if not compiles():
            return "inductor needs a C++ compiler"
        if case.goal.budget_s < LEAST_S:
            return f"compiling takes minutes, and the budget is {case.goal.budget_s:g} s"
        if case.recipe.runtime.get("max_autotune"):
            return "the recipe compiles and tunes already"
        return None

    def propose(self, case: Case) -> Iterable[Proposal]:
        if self.refuse(case):
            return
        runtime = case.recipe.runtime
        if not runtime.get("compile"):
            why = "fused kernels by inductor" + (" for transformers" if looks_like_transformer(case) else "")
            yield Proposal(case.recipe.edit("runtime", compile=True), GAIN, why, self.name)
        elif case.goal.budget_s >= TUNING_S:
            tuned = case.recipe.edit("runtime", max_autotune=True)
            yield Proposal(tuned, TUNED, "kernels chosen by trying several", self.name)
