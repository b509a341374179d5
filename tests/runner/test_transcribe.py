"""Transcription over a listener that says what it was shown, so that the truth can be written down."""

from __future__ import annotations

import numpy as np
import pytest

from hasten.errors import InvalidInput
from hasten.runner.cache import of_decoder
from hasten.runner.transcribe import RATE, Rules, Transcriber, TranscribeSettings, cut, greedy, heard

END, START = 9, 8
WORDS: list[str | None] = [f"\u0120{letter}" for letter in "abcdefgh"] + [None, None]
RULES = Rules((START,), END, (7,), (6,), 20, 4 * RATE, WORDS)


class Counting:
    """Says of a clip the number at its beginning, as often as the next number says, and then ends.

    With less than a second after a clip it goes on for ever, as Whisper does. Its favourite tokens are forbidden ones.
    """

    def __init__(self, log: list[tuple[int, ...]]) -> None:
        self.log = log

    def hear(self, audio: np.ndarray) -> None:
        self.log.append(audio.shape)
        self.word, self.times = audio[:, 0].astype(int), audio[:, 1].astype(int)
        silence = audio.shape[1] - np.array([np.flatnonzero(row)[-1] + 1 for row in audio])
        self.times = np.where(silence < RATE, 1000, self.times)

    def feed(self, ids: np.ndarray, at: int) -> np.ndarray:
        assert len(ids) == len(self.word)
        said = at + ids.shape[1] - 1
        logits = np.zeros((len(ids), 10), np.float32)
        logits[:, 7] = 3.0
        if said == 0:
            logits[:, 6] = 3.0
        for row in range(len(ids)):
            logits[row, self.word[row] if said < self.times[row] else END] = 2.0
        return logits

    def keep(self, rows: np.ndarray) -> None:
        self.word, self.times = self.word[rows], self.times[rows]


class Listener:
    def __init__(self) -> None:
        self.log: list[tuple[int, ...]] = []

    def begin(self) -> Counting:
        return Counting(self.log)

    def close(self) -> None:
        pass


def clip(word: int, times: int, seconds: float = 1.0) -> dict[str, np.ndarray]:
    audio = np.full(int(seconds * RATE), 0.5, np.float32)
    audio[:2] = word, times
    return {"audio": audio}


def said(settings: TranscribeSettings, samples: list[dict[str, np.ndarray]]) -> tuple[list[str], list[tuple[int, ...]]]:
    listener = Listener()
    with Transcriber(lambda: listener, settings, RULES, 1) as runner:
        return [str(each["text"]) for each in runner.run(samples)], listener.log


def test_clips_of_a_batch_end_on_their_own_and_keep_their_order() -> None:
    samples = [clip(0, 2), clip(1, 0), clip(2, 5, 2.0), clip(3, 1), clip(4, 3)]
    wanted = ["a a", "", "c c c c c", "d", "e e e"]
    for settings in (TranscribeSettings(), TranscribeSettings(batch=3), TranscribeSettings(batch=8, sort=True)):
        found, log = said(settings, samples)
        assert found == wanted
        assert {shape[1] for shape in log} == {RULES.samples}


def test_an_answer_has_no_more_tokens_than_there_are_positions() -> None:
    state = Counting([])
    state.hear(np.concatenate([clip(0, 500)["audio"], np.zeros(2 * RATE, np.float32)])[None])
    assert len(greedy(state, 1, RULES)[0]) == RULES.positions - 1


def test_clips_are_heard_for_their_own_length_and_a_margin() -> None:
    found, log = said(TranscribeSettings(batch=2, sort=True, margin_s=1.0), [clip(0, 2), clip(1, 3, 1.5)])
    assert found == ["a a", "b b b"]
    assert log == [(2, 3 * RATE)]


def test_a_clip_that_runs_on_is_heard_again_in_full() -> None:
    rules_found, log = said(TranscribeSettings(batch=2, margin_s=0.5), [clip(0, 2, 0.4), clip(1, 3, 0.6)])
    assert rules_found == ["a a", "b b b"]
    assert log == [(2, 2 * RATE)]
    again, log = said(TranscribeSettings(batch=2, margin_s=0.0), [clip(0, 2, 0.9), clip(1, 3, 0.6)])
    assert again == ["a a", "b b b"]
    assert log == [(2, RATE), (2, RULES.samples)]


def test_a_long_clip_is_cut_where_it_is_quiet() -> None:
    audio = np.concatenate([clip(0, 1, 3.5)["audio"], np.zeros(RATE // 4, np.float32), clip(1, 2, 2.0)["audio"]])
    pieces = cut(audio, 4 * RATE)
    assert len(pieces) == 2
    assert np.array_equal(np.concatenate(pieces), audio)
    assert 3.5 * RATE <= len(pieces[0]) <= 3.75 * RATE
    assert [len(piece) for piece in cut(audio[:RATE], 4 * RATE)] == [RATE]


def test_hearing_goes_in_steps_and_not_beyond_the_window() -> None:
    settings = TranscribeSettings(margin_s=1.0, step_s=0.5)
    assert heard(int(2.2 * RATE), settings, 30 * RATE) == 3.5 * RATE
    assert heard(int(29.9 * RATE), settings, 30 * RATE) == 30 * RATE
    assert heard(RATE, TranscribeSettings(), 30 * RATE) == 30 * RATE


@pytest.mark.parametrize(
    "runner", [{"batch": 0}, {"margin_s": -1}, {"margin_s": "much"}, {"step_s": 0}, {"sort": 1}, {"new_tokens": 3}]
)
def test_settings_that_make_no_sense_are_refused(runner: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        TranscribeSettings.read(runner)


@pytest.mark.parametrize("audio", [np.zeros(0, np.float32), np.zeros((2, 100), np.float32)])
def test_what_is_no_clip_is_refused(audio: np.ndarray) -> None:
    with pytest.raises(InvalidInput, match="a clip has the shape"):
        said(TranscribeSettings(), [{"audio": audio}])


def test_text_is_put_together_from_bytes() -> None:
    rules = Rules((START,), END, (), (), 20, RATE, ["\u0120na", "\u00c3", "\u00af", "ve", None])
    assert rules.text([0, 1, 2, 3, 4]) == "na\u00efve"


def test_a_clip_that_was_heard_is_not_heard_again() -> None:
    listener = Listener()
    with Transcriber(lambda: listener, TranscribeSettings(), RULES, cache=of_decoder({"entries": 4})) as transcriber:  # type: ignore[arg-type, return-value]
        found = [str(row["text"]) for row in transcriber.judge([clip(1, 2), clip(2, 1), clip(1, 2)])]
        assert found == ["b b", "c", "b b"]
        assert len(listener.log) == 2
        assert transcriber.reused() == {"cache_hit_rate": (1, 3)}
    with pytest.raises(InvalidInput, match="step by step"):
        of_decoder({"kind": "semantic", "distance": 0.1})
