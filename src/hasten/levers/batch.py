"""Batch size: how many samples go through the model together."""

from __future__ import annotations

from collections.abc import Iterable

from hasten.levers.base import Case, Prediction, Proposal, SettingsLever

SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
TOGETHER = 16
"""Prompts of a language model."""
CLIPS = 64
"""Clips of a speech model."""


def neighbours(batch: int) -> list[int]:
    """The sizes two steps to either side on the ladder of powers of two, nearest first.

    >>> neighbours(8)
    [16, 4, 32, 2]
    """
    near = min(range(len(SIZES)), key=lambda i: abs(SIZES[i] - batch))
    around = [near + 1, near - 1, near + 2, near - 2]
    return [SIZES[i] for i in around if 0 <= i < len(SIZES) and SIZES[i] != batch]


class Batch(SettingsLever):
    name = "batch"
    programs = frozenset({"single", "generate", "encoder_decoder"})

    def propose(self, case: Case) -> Iterable[Proposal]:
        if case.workload.scenario == "single-stream" or case.recipe.runner.get("form"):
            return
        if case.workload.program == "generate":
            yield from self._together(case)
            return
        if case.workload.program == "encoder_decoder":
            yield from self._clips(case)
            return
        first = [t.shape[0] for t in case.workload.model.signature.inputs if t.shape]
        if any(isinstance(size, int) for size in first):
            return  # the batch axis is fixed, or there is none
        now = int(case.recipe.runner.get("batch", 1))
        for step, batch in enumerate(neighbours(now)):
            if batch > case.workload.samples.count:
                continue
            prior = Prediction(1.04 if step < 2 else 1.02, "prior: a neighbouring batch size")
            yield Proposal(
                case.recipe.edit("runner", batch=batch), prior, f"batches of {batch} instead of {now}", self.name
            )

    def _clips(self, case: Case) -> Iterable[Proposal]:
        """A step of the decoder reads its weights once for all clips; an encoder is full of work with a few."""
        now = int(case.recipe.runner.get("batch", 1))
        sort = "margin_s" in case.recipe.runner
        if sort and not case.recipe.runner.get("sort"):
            yield Proposal(
                case.recipe.edit("runner", sort=True),
                Prediction(1.2, "prior: a batch is heard for as long as its longest clip"),
                "clips of like length together",
                self.name,
            )
        for batch in (now * 2, now * 4, now // 2):
            if 1 <= batch <= min(CLIPS, case.workload.samples.count):
                gain = Prediction(1.15 if batch > now else 1.02, "prior: a step reads the weights for all clips")
                recipe = case.recipe.edit("runner", batch=batch, sort=True if sort and batch > 1 else None)
                yield Proposal(recipe, gain, f"{batch} clips heard together instead of {now}", self.name)

    def _together(self, case: Case) -> Iterable[Proposal]:
        """A step reads every weight once, for one prompt or for many: the more the better, until arithmetic binds."""
        now = int(case.recipe.runner.get("batch", 1))
        if case.recipe.runner.get("lookup"):
            return
        for batch in (now * 4, now * 2, now // 2):
            if 1 <= batch <= min(TOGETHER, case.workload.samples.count):
                gain = Prediction(1.8 if batch > now else 1.02, "prior: one step reads the weights for all prompts")
                recipe = case.recipe.edit("runner", batch=batch, sort=batch > 1)
                yield Proposal(recipe, gain, f"{batch} prompts decoded together instead of {now}", self.name)
