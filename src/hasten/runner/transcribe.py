"""Drives clips of speech through an encoder and a decoder: clips batched, long ones cut, tokens chosen greedily."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.errors import Failed, InvalidInput
from hasten.model import Model
from hasten.runner.cache import ResponseCache, of_decoder
from hasten.runner.decoding import Decoding
from hasten.runner.plan import check_keys
from hasten.runtimes.base import Hearing, Listener, OperatorTime, Settings, SpeechRuntime, Writing

if TYPE_CHECKING:
    import numpy as np

    Sample = Mapping[str, np.ndarray]
    Outputs = dict[str, np.ndarray]

AUDIO = "audio"
"""What a sample of speech holds: float32 [samples] at 16 kHz."""
RATE = 16000
FRAME = 320
"""Samples of one position of the encoder."""
SPARE_TOKENS, TOKENS_PER_S = 10, 8
"""Quick speech has about five tokens a second. With little silence after a short clip, Whisper may say it for ever."""
QUIET_S, SEARCHED_S = 0.1, 5.0
"""A long clip is cut where this long is quietest, within the last seconds that fit."""


@dataclass(frozen=True)
class TranscribeSettings:
    """`[runner]` of a recipe for a speech model.

    `batch` is how many clips are heard together; `sort` puts clips of like length together. Where `margin_s` is given,
    a batch is heard for as long as its longest clip and that margin, in whole steps of `step_s`; without it for as long
    as the model was trained to hear, 30 seconds of Whisper, most of which is silence that was put there. A clip whose
    text then runs on without end is heard again in full.
    """

    batch: int = 1
    sort: bool = False
    margin_s: float | None = None
    step_s: float = 1.0

    @classmethod
    def read(cls, runner: Mapping[str, Any]) -> TranscribeSettings:
        check_keys("[runner] of a speech model", cls, runner)
        batch = runner.get("batch", 1)
        if not isinstance(batch, int) or isinstance(batch, bool) or batch < 1:
            raise InvalidInput(f"[runner] batch = {batch!r} makes no sense", "give a whole number from 1 up")
        for key, least in (("margin_s", 0.0), ("step_s", 0.02)):
            value = runner.get(key, least)
            if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= 30:
                raise InvalidInput(f"[runner] {key} = {value!r} makes no sense", f"give seconds from {least:g} to 30")
        if not isinstance(runner.get("sort", False), bool):
            raise InvalidInput(f"[runner] sort is true or false, not {runner['sort']!r}")
        return cls(**runner)


@dataclass(frozen=True)
class Rules:
    """How a model decodes: see `intake.speech.rules`."""

    prompt: tuple[int, ...]
    end: int
    suppress: tuple[int, ...]
    suppress_first: tuple[int, ...]
    positions: int
    samples: int
    words: Sequence[str | None]

    @classmethod
    def read(cls, path: Path) -> Rules:
        try:
            told = json.loads(path.read_text(encoding="utf-8"))
            lists = {key: tuple(told[key]) for key in ("prompt", "suppress", "suppress_first")}
            return cls(**{**told, **lists})
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise Failed(f"{path.name} holds no rules of decoding: {error}", "convert the model again") from None

    def text(self, tokens: Sequence[int]) -> str:
        """What tokens say, without those that are no text."""
        words = [self.words[token] for token in tokens if token < len(self.words)]
        letters = byte_of_letter()
        return bytes(letters[each] for word in words if word for each in word).decode("utf-8", "replace").strip()


class Transcriber(Decoding):
    """Writes down what clips say, `streams` batches at once. `run` may be called from several threads."""

    def __init__(
        self,
        load: Callable[[], Listener],
        settings: TranscribeSettings,
        rules: Rules,
        streams: int = 1,
        cache: ResponseCache | None = None,
    ) -> None:
        super().__init__(load, streams, "hasten-transcribe", cache)
        self.settings, self.rules = settings, rules

    def run(self, samples: Sequence[Sample]) -> list[Outputs]:
        """The text of each clip, in order."""
        return self._run(samples) if self.cache is None else self.cache.through(samples, self._run)

    def _run(self, samples: Sequence[Sample]) -> list[Outputs]:
        import numpy as np

        pieces = [(index, piece) for index, sample in enumerate(samples) for piece in self._pieces(sample)]
        order = list(range(len(pieces)))
        if self.settings.sort:
            order.sort(key=lambda i: -len(pieces[i][1]))
        batches = [order[at : at + self.settings.batch] for at in range(0, len(order), self.settings.batch)]
        answers = self._pool.map(lambda batch: self._heard([pieces[i][1] for i in batch]), batches)
        texts = {
            i: text for batch, found in zip(batches, answers, strict=True) for i, text in zip(batch, found, strict=True)
        }
        said: list[list[str]] = [[] for _ in samples]
        for i, (index, _) in enumerate(pieces):
            said[index].append(texts[i])
        return [{"text": np.array(" ".join(filter(None, each)))} for each in said]

    def run_one(self, sample: Sample) -> Outputs:
        """The text of one clip, as soon as possible."""
        return self.run([sample])[0]

    def submit(self, sample: Sample) -> Future[Outputs]:
        """Start one clip and return at once."""
        import numpy as np

        def answer() -> Outputs:
            return {"text": np.array(" ".join(filter(None, (self._heard([p])[0] for p in self._pieces(sample)))))}

        return self._pool.submit(answer)

    judge = run
    """What quality is judged by is the text itself."""

    def warm(self, samples: Sequence[Sample]) -> None:
        self.run(samples[: self.settings.batch])

    def operators(self, samples: Sequence[Sample], repeats: int = 10) -> list[OperatorTime]:
        """Per-operator times of the encoder for a typical batch."""
        pieces = sorted((self._pieces(sample)[0] for sample in samples), key=len)
        middle = len(pieces) // 2
        batch = pieces[middle : middle + self.settings.batch]
        found: list[OperatorTime] = self._loaded().operators(self._together(batch), repeats)
        return found

    # -- inside ---------------------------------------------------------------------------------------------------

    def _pieces(self, sample: Sample) -> list[np.ndarray]:
        import numpy as np

        audio = np.asarray(sample[AUDIO], np.float32)
        if audio.ndim != 1 or not audio.size:
            raise InvalidInput(f"a clip has the shape {list(audio.shape)}", "give at least one sample, of one channel")
        return cut(audio, self.rules.samples)

    def _together(self, pieces: Sequence[np.ndarray], whole: bool = False) -> np.ndarray:
        import numpy as np

        longest = max(len(piece) for piece in pieces)
        length = self.rules.samples if whole else heard(longest, self.settings, self.rules.samples)
        audio = np.zeros((len(pieces), length), np.float32)
        for row, piece in enumerate(pieces):
            audio[row, : len(piece)] = piece
        return audio

    def _heard(self, pieces: Sequence[np.ndarray]) -> list[str]:
        """The text of each piece. One that runs on beyond what can be said in its time is heard again, in full."""
        most = None if self.settings.margin_s is None else [sayable(len(piece)) for piece in pieces]
        with self._lend() as lent:
            lent.state.hear(self._together(pieces))
            found = written(lent.state, len(pieces), self.rules, most)
            again = [row for row, tokens in enumerate(found) if most is not None and len(tokens) >= most[row]]
            if again:
                lent.state.hear(self._together([pieces[row] for row in again], whole=True))
                for row, tokens in zip(again, written(lent.state, len(again), self.rules), strict=True):
                    found[row] = tokens
        return [self.rules.text(tokens) for tokens in found]


def open_transcriber(
    speech: SpeechRuntime,
    parts: Mapping[str, Model],
    rules: Path,
    settings: Mapping[str, Any],
    runner: Mapping[str, Any],
    cache: Mapping[str, Any] | None = None,
) -> Transcriber:
    """A transcriber by `[runtime]`, `[runner]` and `[cache]` of a recipe; `parts` are what the runtime needs."""
    base = Settings.from_recipe(settings)
    found = Transcriber(
        lambda: speech.listener(parts, base),
        TranscribeSettings.read(runner),
        Rules.read(rules),
        base.streams or 1,
        of_decoder(cache or {}),
    )
    found.load()
    return found


def written(state: Hearing | Writing, clips: int, rules: Rules, most: Sequence[int] | None = None) -> list[list[int]]:
    """The tokens of each clip that `state` heard, chosen by the runtime where it does that, and by `greedy` else."""
    if not hasattr(state, "write"):
        return greedy(state, clips, rules, most)
    room = rules.positions - len(rules.prompt)
    limits = [room] * clips if most is None else [min(room, each) for each in most]
    found = state.write(rules.prompt, rules.suppress, max(limits))
    return [tokens[:limit] for tokens, limit in zip(found, limits, strict=True)]


def greedy(state: Hearing, clips: int, rules: Rules, most: Sequence[int] | None = None) -> list[list[int]]:
    """The tokens of each clip that `state` heard, without the prompt and the end; at most `most` of each, if given.

    Clips that have ended leave once half of those under way have: each time costs a copy of what is looked at.
    """
    import numpy as np

    found: list[list[int]] = [[] for _ in range(clips)]
    rows, running = np.arange(clips), np.ones(clips, bool)
    ids = np.repeat(np.array([rules.prompt], np.int64), clips, axis=0)
    at = 0
    while True:
        logits = state.feed(ids, at)
        logits[:, list(rules.suppress if at else (*rules.suppress, *rules.suppress_first))] = -np.inf
        chosen = logits.argmax(axis=-1)
        at += ids.shape[1]
        running &= chosen != rules.end
        if most is not None:
            running &= np.array([len(found[row]) < most[row] for row in rows.tolist()])
        for row, token, goes_on in zip(rows.tolist(), chosen.tolist(), running.tolist(), strict=True):
            if goes_on:
                found[row].append(token)
        if at + 1 >= rules.positions or not running.any():
            return found
        if running.sum() <= len(rows) // 2:
            state.keep(np.flatnonzero(running))
            rows, chosen, running = rows[running], chosen[running], running[running]
        ids = chosen[:, None]


def sayable(samples: int) -> int:
    """More tokens than are said in a clip of so many samples.

    >>> sayable(2 * RATE)
    26
    """
    return SPARE_TOKENS + math.ceil(samples / RATE * TOKENS_PER_S)


def heard(samples: int, settings: TranscribeSettings, most: int) -> int:
    """How many samples a batch is heard for whose longest clip has `samples`.

    >>> heard(RATE * 2, TranscribeSettings(margin_s=0.5), 30 * RATE) / RATE
    3.0
    """
    if settings.margin_s is None:
        return most
    step = max(FRAME, round(settings.step_s * RATE / FRAME) * FRAME)
    return min(most, math.ceil((samples + settings.margin_s * RATE) / step) * step)


def cut(audio: np.ndarray, most: int) -> list[np.ndarray]:
    """A clip in pieces of at most `most` samples, each cut where it is quietest."""
    import numpy as np

    found = []
    while len(audio) > most:
        width = int(QUIET_S * RATE)
        first = max(1, most - int(SEARCHED_S * RATE))
        loud = np.convolve(np.square(audio[first:most]), np.ones(width), "same")
        end = first + int(loud.argmin())
        found.append(audio[:end])
        audio = audio[end:]
    return [*found, audio]


def byte_of_letter() -> dict[str, int]:
    """The byte that each letter of a byte-level vocabulary stands for: printable ones for themselves, the others for
    letters from 256 on, in order.

    >>> byte_of_letter()["\u0120"]
    32
    """
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in set(plain)]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(others)}
