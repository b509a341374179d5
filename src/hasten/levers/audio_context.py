"""How long a speech model listens: as long as the clips, instead of the 30 seconds that Whisper fills up with silence.

Positions beyond a clip's end are cut off: they hold silence, but were there in training, so the text may change a
little, and more with little silence left: that is for the word error rate to judge. Whisper tiny.en said short clips
with 2 seconds after them over and over; a text that is too long for its clip is found by that, and the clip heard again
in full, which costs time, so that a longer margin may be the quicker one.
"""

from __future__ import annotations

from collections.abc import Iterable

from hasten.levers.base import Case, Prediction, Proposal, SettingsLever

WHOLE_S = 30.0
PRIORS = {5.0: 2.5, 8.0: 2.0, 3.0: 1.8, 2.0: 1.5}
"""Seconds of silence after clips of some seconds, and how much faster that is than `WHOLE_S`: with little silence some
are heard again."""


class AudioContext(SettingsLever):
    name = "audio_context"
    programs = frozenset({"encoder_decoder"})

    def propose(self, case: Case) -> Iterable[Proposal]:
        now = case.recipe.runner.get("margin_s")
        batch = int(case.recipe.runner.get("batch", 1))
        for margin_s, prior in PRIORS.items():
            if margin_s == now:
                continue
            gain = prior / PRIORS.get(now or 0.0, 1.0)
            recipe = case.recipe.edit("runner", margin_s=margin_s, sort=True if batch > 1 else None)
            why = f"clips are heard for their own length and {margin_s:g} s, not for {WHOLE_S:g} s"
            yield Proposal(recipe, Prediction(gain, "prior: the encoder's time goes with the length"), why, self.name)
