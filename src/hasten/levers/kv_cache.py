"""The precision of a language model's keys and values: fewer bits are less to read for every token of a long text."""

from __future__ import annotations

from collections.abc import Iterable

from hasten.levers.base import Case, Prediction, Proposal, SettingsLever
from hasten.levers.prediction import runtime_of

CHOICES = {"openvino": ("u8", "bf16", "f32"), "openvino_genai": ("u8", "bf16", "f32"), "llamacpp": ("f16", "q8_0")}
"""Each runtime's own default first. The wider ones spare the work of unpacking where texts are short."""
PRIOR = Prediction(1.03, "prior: attention is a small part of a short text's time")


class KvCache(SettingsLever):
    name = "kv_cache"
    programs = frozenset({"generate"})

    def propose(self, case: Case) -> Iterable[Proposal]:
        choices = CHOICES.get(runtime_of(case), ())
        now = case.recipe.runtime.get("kv_cache_precision", choices[0] if choices else None)
        for choice in choices:
            if choice != now:
                recipe = case.recipe.edit("runtime", kv_cache_precision=choice)
                yield Proposal(recipe, PRIOR, f"keys and values kept in {choice}", self.name)
