"""Turns text into token numbers, by the tokenizer that came with the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hasten.data.fit import Row
from hasten.errors import InvalidInput
from hasten.model import Signature, Tensor

AS_TEXT = Signature((Tensor("text", "string", None),), ())
"""What readers are told to look for where text is expected."""
TEXT, PAIR = "text", "text_pair"
"""What a sample of text holds; the second only where two texts belong together."""
TEXT_KEYS = ("text", "sentence", "texts", "content", "document", "query")
PAIRS = (("text", "text_pair"), ("sentence1", "sentence2"), ("premise", "hypothesis"), ("question", "context"))


def with_tokens(rows: Iterator[Row], tokenizer: Path, inputs: Sequence[str]) -> Iterator[Row]:
    """Rows of text with their token numbers beside it, by the tokenizer at `tokenizer`, which also says where to cut.

    The text is under `text` or a like key, or the only value that is text; two texts make a pair.
    """
    encoder: Any = None
    for row in rows:
        encoder = encoder or _open(tokenizer)
        texts = _texts(row)
        found = encoder.encode(*texts)
        made = {
            "input_ids": np.asarray(found.ids, np.int64),
            "attention_mask": np.asarray(found.attention_mask, np.int64),
            "token_type_ids": np.asarray(found.type_ids, np.int64),
        }
        named = dict(zip((TEXT, PAIR), texts, strict=False))
        yield replace(row, inputs={**named, **{name: array for name, array in made.items() if name in inputs}})


def with_text(signature: Signature, pair: bool) -> Signature:
    """The signature with the text beside the model's own inputs: what samples of text hold."""
    names = (TEXT, PAIR) if pair else (TEXT,)
    return Signature((*(Tensor(name, "string", ()) for name in names), *signature.inputs), signature.outputs)


def _texts(row: Row) -> tuple[str, ...]:
    for pair in PAIRS:
        if all(isinstance(row.inputs.get(key), str) for key in pair):
            return tuple(row.inputs[key] for key in pair)
    for key in TEXT_KEYS:
        if isinstance(row.inputs.get(key), str):
            return (row.inputs[key],)
    found = [value for value in row.inputs.values() if isinstance(value, str)]
    if len(found) != 1:
        raise InvalidInput(
            f"{row.where} has {', '.join(map(repr, row.inputs)) or 'nothing'}: which of it is the text?",
            "call it text, or text and text_pair",
        )
    return (found[0],)


def _open(path: Path) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise InvalidInput("text needs tokenizers", "install the extra", "pip install 'hasten[hf]'") from None
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:
        raise InvalidInput(f"{path} is no tokenizer: {' '.join(str(error).split())[:200]}", "copy the folder again") \
            from None  # fmt: skip
