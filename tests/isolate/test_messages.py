"""Messages survive any chunking of the channel and any garbage between them."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.isolate import messages

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
MESSAGES = st.dictionaries(st.text(), VALUES, max_size=4)


def feed_in_pieces(data: bytes, sizes: list[int]) -> list[dict[str, Any]]:
    decoder, found, at = messages.Decoder(), [], 0
    for size in [*sizes, len(data)]:
        found += decoder.feed(data[at : at + size])
        at += size
    return found


@given(st.lists(MESSAGES, max_size=5), st.lists(st.integers(0, 40), max_size=30))
def test_messages_survive_any_chunking(sent: list[dict[str, Any]], sizes: list[int]) -> None:
    assert feed_in_pieces(b"".join(map(messages.encode, sent)), sizes) == sent


@given(MESSAGES, st.binary(), st.lists(st.integers(0, 40), max_size=30))
def test_garbage_spoils_no_message_after_its_own_line(sent: dict[str, Any], garbage: bytes, sizes: list[int]) -> None:
    assert feed_in_pieces(garbage + b"\n" + messages.encode(sent), sizes)[-1] == sent


@given(MESSAGES)
def test_a_message_is_one_line(sent: dict[str, Any]) -> None:
    line = messages.encode(sent)
    assert line.index(b"\n") == len(line) - 1


def test_nan_and_the_infinities_survive() -> None:
    (received,) = messages.Decoder().feed(messages.encode({"value": [math.nan, math.inf, -math.inf]}))
    assert math.isnan(received["value"][0])
    assert received["value"][1:] == [math.inf, -math.inf]


@pytest.mark.parametrize("line", [b"[1]\n", b"7\n", b"\n", b'{"a":\n', b"\xff\n", b"[" * 100_000 + b"\n"])
def test_what_is_no_message_is_dropped(line: bytes) -> None:
    assert messages.Decoder().feed(line + b"{}\n") == [{}]


def test_a_line_without_end_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "LARGEST_BYTES", 100)
    decoder = messages.Decoder()
    assert [decoder.feed(b"x" * 60) for _ in range(50)] == [[]] * 50
    assert sum(map(len, decoder._pieces)) <= 100
    assert decoder.feed(b'\n{"next": 1}\n') == [{"next": 1}]


def test_a_message_too_large_is_refused_where_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "LARGEST_BYTES", 100)
    with pytest.raises(ValueError, match="too large"):
        messages.encode({"value": "x" * 100})
