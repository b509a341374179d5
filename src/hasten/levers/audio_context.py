"""How long a speech model listens: as long as the clips, instead of the 30 seconds that Whisper fills up with silence.

Positions beyond a clip's end are cut off: they hold silence, but were there in training, so the text may change a
little, and more with little silence left: that is for the word error rate to judge. Whisper tiny.en said short clips
with 2 seconds after them over and over; a text that is too long for its clip is found by that, and the clip heard again
in full, which costs time, so that a longer margin may be the quicker one.
"""

from __future__ import annotations

from collections.abc import Iterable

from hasten.levers.base import Case, Prediction, Proposal, SettingsLever

MARGINS_S = (5.0, 3.0, 8.0, 2.0)
WHOLE_S = 30.0
TYPICAL_S = 5.0
"""A clip's length as a first guess: the samples are not read here."""


class AudioContext(SettingsLever):
    name = "audio_context"
    programs = frozenset({"encoder_decoder"})

    def propose(self, case: Case) -> Iterable[Proposal]:
        now = case.recipe.runner.get("margin_s")
        heard_s = WHOLE_S if now is None else TYPICAL_S + float(now)
        batch = int(case.recipe.runner.get("batch", 1))
        for margin_s in MARGINS_S:
            if margin_s == now:
                continue
            gain = min(6.0, heard_s / (TYPICAL_S + margin_s))
            recipe = case.recipe.edit("runner", margin_s=margin_s, sort=True if batch > 1 else None)
            why = f"clips are heard for their own length and {margin_s:g} s, not for {WHOLE_S:g} s"
            yield Proposal(recipe, Prediction(gain, "prior: the encoder's time goes with the length"), why, self.name)
