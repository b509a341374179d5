"""Generation over decoders that are functions of what they are shown, so that the truth can be written down."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hasten.errors import InvalidInput
from hasten.runner.cache import ResponseCache
from hasten.runner.generate import GenerateSettings, Generator, batched, drafted, look_up, losses, together
from hasten.runner.remembered import LEAST, MOST_MASKED, Remembered

VOCABULARY = 11


class Toy:
    """A language model whose next token depends on all that may be looked at, in order: sum and last of it."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.seen: np.ndarray | None = None
        self.calls = 0

    def feed(self, ids: np.ndarray, mask: np.ndarray, positions: np.ndarray, rows: int) -> np.ndarray:
        self.calls += 1
        self.seen = ids if self.seen is None else np.concatenate([self.seen, ids], axis=1)
        assert mask.shape == self.seen.shape
        assert positions.shape == ids.shape
        found = np.zeros((len(ids), rows, VOCABULARY), np.float32)
        length = self.seen.shape[1]
        for row in range(len(ids)):
            for at in range(rows):
                end = length - rows + at + 1
                visible = self.seen[row, :end][mask[row, :end] == 1]
                assert positions[row, ids.shape[1] - rows + at] == len(visible) - 1
                found[row, at, truth(visible)] = 1.0
        return found


def truth(visible: np.ndarray) -> int:
    return int((visible.sum() // 3 + 2 * visible[-1]) % 5)


def alone(prompt: list[int], most: int) -> list[int]:
    text = list(prompt)
    for _ in range(most):
        text.append(truth(np.array(text)))
    return text[len(prompt) :]


class Letters:
    """One token for each letter from a on; `z` is the end."""

    ends = frozenset({25})

    def encode(self, text: str) -> np.ndarray:
        return np.array([ord(letter) - 97 for letter in text], np.int64)

    def decode(self, ids: np.ndarray) -> str:
        return "".join(chr(97 + int(token)) for token in ids)


class ToyDecoder:
    def begin(self) -> Toy:
        return Toy()

    def close(self) -> None:
        pass


PROMPTS = st.lists(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=12), min_size=1, max_size=5)


@given(PROMPTS, st.integers(1, 12))
@settings(deadline=None, max_examples=60)
def test_prompts_decoded_together_get_the_answers_that_they_get_alone(prompts: list[list[int]], most: int) -> None:
    steps = list(together(Toy(), [np.array(prompt) for prompt in prompts], most))
    assert len(steps) == most
    for row, prompt in enumerate(prompts):
        assert [step[row][0] for step in steps] == alone(prompt, most)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=20), st.integers(1, 30), st.integers(1, 6))
@settings(deadline=None, max_examples=100)
def test_drafts_change_nothing_but_the_number_of_steps(prompt: list[int], most: int, width: int) -> None:
    state = Toy()
    found = [token for step in drafted(state, np.array(prompt), most, width) for token in step[0]]
    assert found == alone(prompt, most)
    assert state.calls <= most


def test_a_text_that_repeats_itself_takes_fewer_steps() -> None:
    class Cycle(Toy):
        def feed(self, ids: np.ndarray, mask: np.ndarray, positions: np.ndarray, rows: int) -> np.ndarray:
            self.calls += 1
            found = np.zeros((1, rows, VOCABULARY), np.float32)
            for at in range(rows):
                found[0, at, (ids[0, ids.shape[1] - rows + at] + 1) % 4] = 1.0
            return found

    state = Cycle()
    found = [token for step in drafted(state, np.array([0, 1, 2, 3, 0, 1]), 24, 5) for token in step[0]]
    assert found == [(2 + i) % 4 for i in range(24)]
    assert state.calls <= 6


def test_what_is_looked_up_follows_the_longest_match_that_stands_last() -> None:
    assert look_up([5, 1, 2, 7, 6, 1, 2, 8, 1, 2], 1) == [8]
    assert look_up([1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3], 2) == [4, 9]
    assert look_up([1, 2, 3], 4) == []
    assert look_up([1, 1], 0) == []


def test_batches_hold_every_prompt_once() -> None:
    lengths = [3, 9, 1, 7, 5]
    found = batched(lengths, GenerateSettings(batch=2, sort=True))
    assert found == [[1, 3], [4, 0], [2]]
    assert batched(lengths, GenerateSettings(batch=2)) == [[0, 1], [2, 3], [4]]


def test_answers_come_in_order_whatever_shares_their_batch_and_say_how_long_they_took() -> None:
    samples = [{"text": np.array(text)} for text in ("ab", "cde", "a", "bbbb")]
    wanted = None
    for settings_ in (GenerateSettings(6), GenerateSettings(6, batch=3, sort=True), GenerateSettings(6, lookup=3)):
        with Generator(ToyDecoder, settings_, Letters(), streams=2) as generator:
            found = [str(answer["text"]) for answer in generator.run(samples)]
            assert found == (wanted or found)
            wanted = found
            assert [timing.tokens for timing in generator.timings] == [6] * 4
            assert all(0 < timing.first_s <= timing.whole_s for timing in generator.timings)
            assert "".join(generator.stream("cde")) == generator.answer("cde") == found[1]
            assert found[1].startswith(generator.answer("cde", 2))
            assert len(generator.answer("cde", 9)) == 9
            assert str(generator.submit(samples[3]).result()["text"]) == found[3]
            assert generator.run([]) == []
            with pytest.raises(InvalidInput, match="empty"):
                generator.run_one({"text": np.array("")})


def test_an_answer_ends_at_the_end_unless_it_is_to_go_on() -> None:
    class Ends(Letters):
        ends = frozenset({9, truth(np.array([0, 1]))})

    with Generator(ToyDecoder, GenerateSettings(5), Ends()) as generator:
        assert str(generator.run_one({"text": np.array("ab")})["text"]) == ""
        generator.to_the_end = True
        assert len(str(generator.run_one({"text": np.array("ab")})["text"])) == 5


class Scheduling:
    """Answers up to `together` prompts, a token of each at a time; says who was under way in each step."""

    def __init__(self) -> None:
        self.steps: list[list[int]] = []

    def answer(
        self, prompts: Sequence[np.ndarray], most: int, ends: Collection[int], together: int
    ) -> Iterator[list[list[int]]]:
        waiting, under = list(range(len(prompts))), {}
        while waiting or under:
            while waiting and len(under) < together:
                row = waiting.pop(0)
                under[row] = alone(prompts[row].tolist(), most)
            self.steps.append(sorted(under))
            gained: list[list[int]] = [[] for _ in prompts]
            for row, rest in list(under.items()):
                gained[row].append(rest.pop(0))
                if not rest or gained[row][0] in ends:
                    del under[row]
            yield gained

    def score(self, texts: Sequence[np.ndarray]) -> list[tuple[float, int]]:
        return [(float(text.sum()), len(text) - 1) for text in texts]

    def close(self) -> None:
        pass


@given(PROMPTS, st.integers(1, 6), st.integers(1, 4), st.sampled_from([frozenset[int](), frozenset({1, 3})]))
@settings(deadline=None, max_examples=60)
def test_prompts_that_join_as_others_end_have_the_answers_of_batches(
    prompts: list[list[int]], most: int, batch: int, ends: frozenset[int]
) -> None:
    words = Letters()
    words.ends = ends
    samples = [{"text": np.array(words.decode(np.array(prompt)))} for prompt in prompts]
    inside = Scheduling()
    with (
        Generator(ToyDecoder, GenerateSettings(most, batch), words) as fed,
        Generator(lambda: inside, GenerateSettings(most, batch), words, joins=True) as joined,
    ):
        assert joined.run(samples) == fed.run(samples)
        assert [each.tokens for each in joined.timings] == [each.tokens for each in fed.timings]
        assert all(each.first_s <= each.whole_s for each in joined.timings)
        assert joined.answer(str(samples[0]["text"])) == fed.answer(str(samples[0]["text"]))
        assert [pair["nll"].tolist() for pair in joined.judge(samples)] == [[sum(p), len(p) - 1] for p in prompts]
    assert max(map(len, inside.steps)) == min(batch, len(prompts)), "as many as may be under way, and no more"


def test_the_loss_of_a_text_by_hand() -> None:
    class Sure(Toy):
        def feed(self, ids: np.ndarray, mask: np.ndarray, positions: np.ndarray, rows: int) -> np.ndarray:
            return np.log(np.tile(np.array([0.5, 0.25, 0.25]), (1, rows, 1))).astype(np.float32)

    class Decoder(ToyDecoder):
        def begin(self) -> Toy:
            return Sure()

    with Generator(Decoder, GenerateSettings(), Letters()) as generator:
        nats, count = generator.judge([{"text": np.array("aab" + "c" * 200)}])[0]["nll"]
        assert count == 202
        assert nats == pytest.approx(math.log(2) + 201 * math.log(4))


@pytest.mark.parametrize(
    ("runner", "said"),
    [
        ({"new_tokens": 0}, "new_tokens"),
        ({"batch": True}, "batch"),
        ({"buckets": [1]}, "unknown keys"),
        ({"lookup": 3, "batch": 2}, "batch of 1"),
        ({"sort": 1}, "true or false"),
    ],
)
def test_settings_that_make_no_sense_are_refused(runner: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        GenerateSettings.read(runner)


@given(PROMPTS)
@settings(deadline=None, max_examples=60)
def test_texts_scored_together_score_as_alone(texts: list[list[int]]) -> None:
    class Doubtful(Toy):
        def feed(self, ids: np.ndarray, mask: np.ndarray, positions: np.ndarray, rows: int) -> np.ndarray:
            self.seen = ids if self.seen is None else np.concatenate([self.seen, ids], axis=1)
            found = np.zeros((len(ids), rows, VOCABULARY), np.float32)
            for row in range(len(ids)):
                for at in range(rows):
                    end = self.seen.shape[1] - rows + at + 1
                    visible = self.seen[row, :end][mask[row, :end] == 1]
                    found[row, at] = np.sin(np.arange(VOCABULARY) + visible.sum() + 3 * len(visible))
            return found

    arrays = [np.array(text) for text in texts]
    alone_ = [losses(Doubtful(), [text])[0] for text in arrays]
    for (nats, count), (wanted, tokens) in zip(losses(Doubtful(), arrays), alone_, strict=True):
        assert count == tokens
        assert nats == pytest.approx(wanted, abs=1e-4)


BEGINNINGS = [[1, 4, 2, 2, 0, 3, 1, 1, 2, 4, 3, 0], [1, 4, 2, 2, 0, 3, 1, 1, 7, 7]]


@given(
    st.lists(
        st.tuples(
            st.sampled_from([[], *BEGINNINGS]),
            st.lists(st.integers(0, 4), min_size=1, max_size=6),
            st.integers(1, 9),
            st.sampled_from([0, 3]),
        ),
        min_size=2,
        max_size=8,
    )
)
@settings(deadline=None, max_examples=150)
def test_what_is_remembered_changes_no_answer(
    turns: list[tuple[list[int], list[int], int, int]],
) -> None:
    """Over any series of prompts, with and without drafts; some go on from the answer before."""
    toy = Toy()
    state = Remembered(toy)
    said: list[int] = []
    for number, (beginning, rest, most, width) in enumerate(turns):
        prompt = [*(said if number % 3 == 2 else beginning), *rest]
        state.reset()
        steps = drafted(state, np.array(prompt), most, width) if width else together(state, [np.array(prompt)], most)
        answer = [token for step in steps for token in step[0]][:most]
        assert answer == alone(prompt, most)
        said = prompt + answer


def test_a_beginning_that_was_read_is_not_read_again() -> None:
    toy, long = Toy(), list(range(5)) * 20
    state = Remembered(toy)
    for ending, kept in (([1, 2], 0), ([3], 100), ([3, 1], 101)):
        state.reset()
        list(together(state, [np.array(long + ending)], 2))
        assert state.kept == kept
    state.reset()
    list(together(state, [np.array([*long[: LEAST - 1], 9, 9])], 1))
    assert state.kept == 0, "a short beginning is not worth its masks"


def test_what_is_masked_does_not_pile_up() -> None:
    toy, start = Toy(), [1] * LEAST
    state = Remembered(toy)
    for number in range(40):
        state.reset()
        list(together(state, [np.array(start + [number % 5] * 50)], 1))
        assert toy.seen is not None
        assert toy.seen.shape[1] <= MOST_MASKED + 2 * LEAST + 51


def test_a_failure_leaves_nothing_that_could_be_gone_on_from() -> None:
    class Failing(Toy):
        def feed(self, ids: np.ndarray, mask: np.ndarray, positions: np.ndarray, rows: int) -> np.ndarray:
            if ids[0, -1] == 10:
                raise RuntimeError("no")
            return super().feed(ids, mask, positions, rows)

    state, prompt = Remembered(Failing()), [1, 2, 3] * 6
    list(together(state, [np.array(prompt)], 2))
    state.reset()
    with pytest.raises(RuntimeError):
        list(together(state, [np.array([*prompt, 10])], 2))
    state.reset()
    steps = list(together(state, [np.array([*prompt, 4])], 3))
    assert state.kept == 0
    assert [step[0][0] for step in steps] == alone([*prompt, 4], 3)


@pytest.mark.parametrize("key", ["prefix", "lookup"])
def test_what_is_for_a_batch_of_one_says_so(key: str) -> None:
    with pytest.raises(InvalidInput, match="batch of 1"):
        GenerateSettings.read({key: True if key == "prefix" else 4, "batch": 2})
    with pytest.raises(InvalidInput, match="true or false"):
        GenerateSettings.read({"prefix": 1})


def test_a_prompt_that_was_answered_is_not_decoded_again() -> None:
    with Generator(ToyDecoder, GenerateSettings(new_tokens=4), Letters(), cache=ResponseCache(8)) as generator:  # type: ignore[arg-type]
        samples = [{"text": np.array(text)} for text in ("abc", "bcd", "abc")]
        found = [str(row["text"]) for row in generator.run(samples)]
        assert found[0] == found[2] == "".join(chr(97 + token) for token in alone([0, 1, 2], 4))
        assert len(generator.timings) == 2, "only what was computed is timed"
        generator.run(samples)
        assert generator.timings == []
        assert generator.reused() == {"cache_hit_rate": (4, 6)}
        generator.forget()
        assert generator.reused() == {"cache_hit_rate": (0, 0)}


def test_the_share_of_prompts_that_is_not_read_again_is_counted_from_nothing() -> None:
    with Generator(ToyDecoder, GenerateSettings(new_tokens=1, prefix=True), Letters()) as generator:  # type: ignore[arg-type]
        samples = [{"text": np.array("abcdefghij" + end)} for end in ("kl", "mn")]
        for _ in range(2):
            generator.forget()
            generator.run(samples)
            assert generator.reused() == {"prefix_hit_rate": (10, 24)}
