"""Drives texts through a decoder: prompts batched, tokens chosen greedily, drafts looked up, texts scored.

Greedy decoding, so that two variants differ by their arithmetic alone. Drafts cost nothing but the rows that check
them: what followed the last few tokens earlier in the text is proposed to follow again (prompt lookup decoding,
A. Saxena 2023), and only what the model itself would have chosen is kept, so that the text stays the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from time import perf_counter
from typing import TYPE_CHECKING, Any

from hasten.errors import InvalidInput
from hasten.model import Model
from hasten.runner.cache import ResponseCache, of_decoder
from hasten.runner.decoding import Decoding, Lent
from hasten.runner.plan import check_keys
from hasten.runner.remembered import Remembered
from hasten.runtimes.base import (
    Answerer,
    Decoder,
    DecoderState,
    LanguageRuntime,
    OperatorTime,
    Settings,
    TextTokenizer,
    answers_itself,
)

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

    Sample = Mapping[str, np.ndarray]
    Outputs = dict[str, np.ndarray]

PROMPT = "text"
"""What a sample of text holds, and what the answer is called."""
LOSS = "nll"
"""Of a scored text: its negative log-likelihood in nats, and over how many tokens."""
NGRAM = 3
"""Drafts are looked up by the last so many tokens, then by fewer."""
SCORED = 512
"""At most so many tokens of a text are scored, in pieces of `PIECE`."""
PIECE = 128
PROFILE_TOKENS = 256
HISTORY = 10_000


@dataclass(frozen=True)
class GenerateSettings:
    """`[runner]` of a recipe for a language model.

    `new_tokens` is the most that an answer has; `batch` is how many prompts are decoded together; `sort` puts prompts
    of like length together; `lookup` is how many tokens a draft has (0: no drafts); `prefix` is whether what a prompt
    begins with, like the one before it, is not read again. Both are for a batch of one.
    """

    new_tokens: int = 64
    batch: int = 1
    sort: bool = False
    lookup: int = 0
    prefix: bool = False

    @classmethod
    def read(cls, runner: Mapping[str, Any]) -> GenerateSettings:
        check_keys("[runner] of a language model", cls, runner)
        for key, least in (("new_tokens", 1), ("batch", 1), ("lookup", 0)):
            value = runner.get(key, least)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InvalidInput(f"[runner] {key} = {value!r} makes no sense", f"give a whole number from {least} up")
        for key in ("sort", "prefix"):
            if not isinstance(runner.get(key, False), bool):
                raise InvalidInput(f"[runner] {key} is true or false, not {runner[key]!r}")
        for key in ("lookup", "prefix"):
            if runner.get(key) and runner.get("batch", 1) > 1:
                raise InvalidInput(f"[runner] {key} needs a batch of 1", f"leave {key} or batch out")
        return cls(**runner)


@dataclass(frozen=True)
class Timing:
    """Of one answer: seconds to its first token, seconds in all, and how many tokens it has."""

    first_s: float
    whole_s: float
    tokens: int


class Generator(Decoding):
    """Answers prompts with a decoder, `streams` batches at once. `run` may be called from several threads.

    Where it `joins`, what is loaded is an `Answerer`: a prompt joins those under way as soon as another has ended, so
    that there are no batches, and `settings.batch` is how many are under way at once.
    `to_the_end` goes on to `new_tokens` whatever the model says: so that what is timed is the same work each time.
    `timings` are those of the last `run`, `history` of the last answers of all.
    """

    def __init__(
        self,
        load: Callable[[], Decoder | Answerer],
        settings: GenerateSettings,
        tokenizer: TextTokenizer,
        streams: int = 1,
        cache: ResponseCache | None = None,
        joins: bool = False,
    ) -> None:
        super().__init__(load, settings.batch if joins else streams, "hasten-generate", cache)
        self.settings, self.to_the_end, self._joins = settings, False, joins
        self.timings: list[Timing] = []
        self.history: deque[Timing] = deque(maxlen=HISTORY)
        self._tokenizer = tokenizer

    # -- answers --------------------------------------------------------------------------------------------------

    def run(self, samples: Sequence[Sample]) -> list[Outputs]:
        """What the model adds to each prompt, in order. `timings` then says how long each took that was computed."""
        return self._run(samples) if self.cache is None else self.cache.through(samples, self._run)

    def _run(self, samples: Sequence[Sample]) -> list[Outputs]:
        self.timings = []
        if not samples:
            return []
        start = perf_counter()
        prompts = [self._encode(sample) for sample in samples]
        batches = batched([len(prompt) for prompt in prompts], self.settings)
        if self._joins:
            batches = [[index for batch in batches for index in batch]]
        answers = self._pool.map(lambda batch: self._answer([prompts[i] for i in batch], start), batches)
        found: list[Outputs | None] = [None] * len(samples)
        timings: list[Timing | None] = [None] * len(samples)
        for batch, (texts, times) in zip(batches, answers, strict=True):
            for index, text, time in zip(batch, texts, times, strict=True):
                found[index], timings[index] = text, time
        self.timings = timings  # type: ignore[assignment]
        return found  # type: ignore[return-value]

    def run_one(self, sample: Sample) -> Outputs:
        """The answer to one prompt, as soon as possible."""
        return self.run([sample])[0]

    def answer(self, prompt: str, new_tokens: int | None = None) -> str:
        """What the model adds to one text, in at most `new_tokens` (those of the settings, where not given)."""
        return "".join(self.stream(prompt, new_tokens))

    def submit(self, sample: Sample) -> Future[Outputs]:
        """Start one prompt and return at once."""
        return self._pool.submit(lambda: self._answer([self._encode(sample)], perf_counter())[0][0])

    def stream(self, prompt: str, new_tokens: int | None = None) -> Iterator[str]:
        """One answer in pieces as they come, each whole words or signs of it: together they are what `run` gives."""
        import numpy as np

        most = self.settings.new_tokens if new_tokens is None else new_tokens
        if most < 1:
            raise InvalidInput(f"an answer of {most} tokens makes no sense", "give at least 1")
        ids: list[int] = []
        told = ""
        with closing(self._decode([self._encode({PROMPT: np.array(prompt)})], most, self._tokenizer.ends)) as steps:
            for chosen in steps:
                for token in chosen[0]:
                    if token in self._tokenizer.ends or len(ids) == most:
                        break
                    ids.append(token)
                else:
                    text = self._tokenizer.decode(np.array(ids, np.int64))
                    if not text.endswith("\ufffd"):  # half a sign: the next token has the other half
                        yield text[len(told) :]
                        told = text
                    continue
                break
        text = self._tokenizer.decode(np.array(ids, np.int64)) if ids else ""
        if text != told:
            yield text[len(told) :]

    def judge(self, samples: Sequence[Sample]) -> list[Outputs]:
        """How well the model foresees each text: what perplexity is made of.

        Texts share batches as prompts do, so that what padding does to them is judged with the rest.
        """
        import numpy as np

        texts = [self._encode(sample)[:SCORED] for sample in samples]
        found: list[Outputs] = [{}] * len(texts)
        if self._joins:
            return [{LOSS: np.array(loss, np.float64)} for loss in self._loaded().score(texts)]
        for batch in batched([len(text) for text in texts], self.settings):
            with self._state() as state:
                for index, loss in zip(batch, losses(state.state, [texts[i] for i in batch]), strict=True):
                    found[index] = {LOSS: np.array(loss, np.float64)}
        return found

    def forget(self) -> None:
        super().forget()
        with self._lock:
            for state in self._idle:
                if isinstance(state, Remembered):
                    state.forget()

    def reused(self) -> dict[str, tuple[int, int]]:
        """Of prompts, how many tokens were not read again."""
        with self._lock:
            states = [state for state in self._idle if isinstance(state, Remembered)]
        whole = sum(state.asked for state in states)
        prefix = {"prefix_hit_rate": (sum(state.reused for state in states), whole)} if whole else {}
        return {**super().reused(), **prefix}

    # -- the runner's other duties --------------------------------------------------------------------------------

    def warm(self, samples: Sequence[Sample]) -> None:
        self.run(samples[: self.settings.batch])

    def operators(self, samples: Sequence[Sample], repeats: int = 10) -> list[OperatorTime]:
        """Per-operator times of one decoding step after a typical prompt."""
        found: list[OperatorTime] = self._loaded().operators(self._typical(samples)[None], repeats)
        return found

    def steps(self, samples: Sequence[Sample], repeats: int) -> list[float]:
        """Seconds of decoding steps after a typical prompt, one token each, with nothing around them."""
        import numpy as np

        context = self._typical(samples)[None]
        if self._joins:
            marks = [perf_counter() for _ in self._loaded().answer([context[0]], repeats + 1, (), 1)]
            return [after - before for before, after in pairwise(marks)]
        whole = np.ones((1, context.shape[1] + repeats), np.int64)
        found = []
        with self._state() as state:
            state.state.feed(context, whole[:, : context.shape[1]], np.arange(context.shape[1])[None], 1)
            for length in range(context.shape[1] + 1, whole.shape[1] + 1):
                start = perf_counter()
                state.state.feed(context[:, -1:], whole[:, :length], np.array([[length - 1]]), 1)
                found.append(perf_counter() - start)
        return found

    def _typical(self, samples: Sequence[Sample]) -> np.ndarray:
        prompts = sorted((self._encode(sample) for sample in samples), key=len)
        return prompts[len(prompts) // 2][:PROFILE_TOKENS]

    # -- inside ---------------------------------------------------------------------------------------------------

    def _encode(self, sample: Sample) -> np.ndarray:
        ids = self._tokenizer.encode(str(sample[PROMPT]))
        if not len(ids):
            raise InvalidInput("a prompt is empty", "give at least one word")
        return ids

    def _answer(self, prompts: list[np.ndarray], start: float) -> tuple[list[Outputs], list[Timing]]:
        """The answers of prompts that are decoded together, and how long each took since `start`."""
        import numpy as np

        most, ends = self.settings.new_tokens, frozenset() if self.to_the_end else self._tokenizer.ends
        answers: list[list[int]] = [[] for _ in prompts]
        first, whole = [0.0] * len(prompts), [0.0] * len(prompts)
        going = set(range(len(prompts)))
        with closing(self._decode(prompts, most, ends)) as steps:
            for chosen in steps:
                now = perf_counter() - start
                for row in [row for row in going if chosen[row]]:
                    first[row], whole[row] = first[row] or now, now
                    for token in chosen[row]:
                        if token in ends or len(answers[row]) == most:
                            going.discard(row)
                            break
                        answers[row].append(int(token))
                    if len(answers[row]) == most:
                        going.discard(row)
                if not going:
                    break
        texts: list[Outputs] = [
            {PROMPT: np.array(self._tokenizer.decode(np.array(own, np.int64)) if own else "")} for own in answers
        ]
        timings = [Timing(begun, done, len(own)) for begun, done, own in zip(first, whole, answers, strict=True)]
        self.history.extend(timings)
        return texts, timings

    def _decode(self, prompts: list[np.ndarray], most: int, ends: Collection[int]) -> Any:
        """Yields the tokens that each sequence gains in each step, at most `most` of them in all steps.

        Sequences may go on after one of `ends`.
        """
        if self._joins:
            yield from self._loaded().answer(prompts, most, ends, self.settings.batch)
            return
        with self._state() as state:
            if len(prompts) == 1 and self.settings.lookup:
                yield from drafted(state.state, prompts[0], most, self.settings.lookup)
            else:
                yield from together(state.state, prompts, most)

    def _begin(self, model: Decoder) -> DecoderState:
        return Remembered(model.begin()) if self.settings.prefix else model.begin()

    def _state(self) -> Lent:
        lent = self._lend()
        lent.state.reset()
        return lent


def open_generator(
    language: LanguageRuntime,
    model: Model,
    tokenizer: Path,
    settings: Mapping[str, Any],
    runner: Mapping[str, Any],
    cache: Mapping[str, Any] | None = None,
) -> Generator:
    """A generator of `model` by `[runtime]`, `[runner]` and `[cache]` of a recipe."""
    base, plan, joins = Settings.from_recipe(settings), GenerateSettings.read(runner), answers_itself(language)
    if joins and (plan.lookup or plan.prefix):
        raise InvalidInput(
            f"[runner] lookup and prefix feed a model token by token, which runtime {language.name} does not let",
            'leave them out, or use name = "openvino"',
        )
    generator = Generator(
        lambda: language.decoder(model, base),
        plan,
        language.tokenizer(tokenizer),
        base.streams or 1,
        of_decoder(cache or {}),
        joins,
    )
    generator.load()
    return generator


def batched(lengths: Sequence[int], settings: GenerateSettings) -> list[list[int]]:
    """Which prompts are decoded together.

    >>> batched([5, 9, 4], GenerateSettings(batch=2, sort=True))
    [[1, 0], [2]]
    """
    order = list(range(len(lengths)))
    if settings.sort:
        order.sort(key=lambda i: -lengths[i])  # the longest first: what is left at the end is short
    return [order[at : at + settings.batch] for at in range(0, len(order), settings.batch)]


def together(state: DecoderState, prompts: Sequence[np.ndarray], most: int) -> Iterator[list[list[int]]]:
    """Decode prompts side by side, the shorter ones padded in front."""
    ids, mask, positions = padded(prompts, most)
    fed = ids.shape[1]
    chosen = state.feed(ids, mask[:, :fed], positions[:, :fed], 1)[:, -1].argmax(axis=-1)
    yield [[int(token)] for token in chosen]
    for _ in range(most - 1):
        fed += 1
        chosen = state.feed(chosen[:, None], mask[:, :fed], positions[:, fed - 1 : fed], 1)[:, -1].argmax(axis=-1)
        yield [[int(token)] for token in chosen]


def drafted(state: DecoderState, prompt: np.ndarray, most: int, width: int) -> Iterator[list[list[int]]]:
    """Decode one prompt, checking drafts of up to `width` tokens. What was turned down is never looked at again."""
    import numpy as np

    text = [int(token) for token in prompt]
    whole = np.ones((1, len(prompt)), np.int64)
    chosen = int(state.feed(prompt[None], whole, np.arange(len(prompt))[None], 1).argmax())
    text.append(chosen)
    yield [[chosen]]
    seen = [1] * len(prompt)  # of all that was fed, what counts
    made = 1
    while made < most:
        draft = look_up(text, min(width, most - made - 1))
        fed = [text[-1], *draft]
        mask = np.array([seen + [1] * len(fed)], np.int64)
        at = len(text) - 1
        logits = state.feed(np.array([fed]), mask, np.arange(at, at + len(fed))[None], len(fed))[0]
        wanted = [int(token) for token in logits.argmax(axis=-1)]
        right = next((i for i, token in enumerate(draft) if token != wanted[i]), len(draft))
        seen += [1] * (right + 1) + [0] * (len(draft) - right)
        text += wanted[: right + 1]
        made += right + 1
        yield [wanted[: right + 1]]


def look_up(text: Sequence[int], width: int) -> list[int]:
    """What followed the last tokens of `text` where they last stood before, at most `width` of it.

    >>> look_up([1, 2, 3, 9, 1, 2, 3], 2)
    [9, 1]
    """
    if width < 1:
        return []
    for length in range(min(NGRAM, len(text) - 1), 0, -1):
        last = list(text[-length:])
        for at in range(len(text) - length - 1, -1, -1):
            if text[at] == last[0] and list(text[at : at + length]) == last:
                return list(text[at + length : at + length + width])
    return []


def losses(state: DecoderState, texts: Sequence[np.ndarray]) -> list[tuple[float, int]]:
    """Of each text the summed negative log-likelihood of all tokens but the first, and how many those are."""
    import numpy as np

    ids, mask, positions = padded(texts)
    longest = ids.shape[1]
    totals = np.zeros(len(texts))
    width = max(1, PIECE // len(texts))
    for begin in range(0, longest - 1, width):
        end = min(begin + width, longest - 1)
        logits = state.feed(ids[:, begin:end], mask[:, :end], positions[:, begin:end], end - begin)
        top = logits.max(axis=-1)
        normal = top + np.log(np.exp(logits - top[..., None]).sum(axis=-1, dtype=np.float64))
        chosen = np.take_along_axis(logits, ids[:, begin + 1 : end + 1, None], axis=-1)[..., 0]
        totals += ((normal - chosen) * mask[:, begin:end]).sum(axis=1)
    return [(float(total), len(text) - 1) for total, text in zip(totals, texts, strict=True)]


def padded(prompts: Sequence[np.ndarray], more: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Token numbers, mask and positions of prompts that end together, the shorter ones padded in front.

    Mask and positions have room for `more` tokens after them.
    """
    import numpy as np

    longest = max(len(prompt) for prompt in prompts)
    ids = np.zeros((len(prompts), longest), np.int64)
    mask = np.zeros((len(prompts), longest + more), np.int64)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = prompt
        mask[row, longest - len(prompt) :] = 1
    return ids, mask, np.maximum(mask.cumsum(axis=1) - 1, 0)
