"""Turns the text of samples into token numbers, all of a call together, with the tokenizer that came with the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.data.text import PAIR, TEXT
from hasten.errors import Failed, InvalidInput

if TYPE_CHECKING:
    import numpy as np


class Tokeniser:
    """Samples of text in, samples of token numbers out. `path` is a tokenizer.json that also says where to cut."""

    def __init__(self, path: Path, inputs: Sequence[str]) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise InvalidInput(
                "the model takes text, and tokenizers is not installed", "install it", "pip install tokenizers"
            ) from None
        try:
            self._encoder: Any = Tokenizer.from_file(str(path))
        except Exception as error:
            raise Failed(f"{path.name} is no tokenizer: {' '.join(str(error).split())[:200]}") from None
        self._encode = getattr(self._encoder, "encode_batch_fast", self._encoder.encode_batch)
        self._inputs = frozenset(inputs)

    def __call__(self, samples: Sequence[Mapping[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
        import numpy as np

        pairs = PAIR in samples[0] if samples else False
        texts: list[Any] = [str(sample[TEXT]) for sample in samples]
        if pairs:
            texts = [(text, str(sample[PAIR])) for text, sample in zip(texts, samples, strict=True)]
        found = []
        for encoded in self._encode(texts):
            ids = np.array(encoded.ids, np.int64)
            made = {"input_ids": ids}
            if "attention_mask" in self._inputs:
                made["attention_mask"] = np.ones_like(ids)
            if "token_type_ids" in self._inputs:
                made["token_type_ids"] = np.array(encoded.type_ids, np.int64)
            found.append(made)
        return found
