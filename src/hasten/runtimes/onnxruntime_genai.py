"""ONNX Runtime GenAI: runs language models that its own model builder wrote, one sequence after the other."""

from __future__ import annotations

import json
import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.errors import Failed, InvalidInput
from hasten.model import Model
from hasten.runtimes.base import Availability, OperatorTime, Settings, check_settings
from hasten.runtimes.openvino_decoder import OpenVinoTokenizer

if TYPE_CHECKING:
    import numpy as np

GENAI_CONFIG = "genai_config.json"
"""What such a model is opened by; the ONNX file and its weights lie beside it."""
LEAST_ROOM = 512
"""Tokens that a new sequence has room for; it is doubled as the text grows."""
READ_AT_ONCE = 256
"""So many tokens of a prompt go through the model at once: each has logits over the whole vocabulary."""


class OnnxRuntimeGenAi:
    """Opens folders of its model builder; language models are all it runs."""

    name = "onnxruntime_genai"
    package = "onnxruntime-genai"
    accepts = frozenset({"onnx-genai"})
    precisions = ("fp32",)
    programs = frozenset({"generate"})
    language = "hasten.runtimes.onnxruntime_genai:OnnxRuntimeGenAiLanguage"

    def availability(self) -> Availability:
        return OnnxRuntimeGenAiLanguage().availability()

    def load(self, model: Model, settings: Settings) -> Any:
        raise InvalidInput("runtime onnxruntime_genai runs language models alone", 'use name = "onnxruntime"')


class OnnxRuntimeGenAiLanguage:
    """ONNX Runtime GenAI as it runs language models; their tokenizer stays OpenVINO's."""

    name = "onnxruntime_genai"

    def availability(self) -> Availability:
        try:
            return Availability(True, version=version("onnxruntime-genai"))
        except PackageNotFoundError:
            return Availability(
                False, "the package onnxruntime-genai is not installed", "pip install 'hasten[onnxruntime-genai]'"
            )

    def decoder(self, model: Model, settings: Settings) -> OnnxRuntimeGenAiDecoder:
        check_settings(self.name, settings, OnnxRuntimeGenAi.precisions, ())
        return OnnxRuntimeGenAiDecoder(model.path, settings.threads)

    def tokenizer(self, path: Path) -> OpenVinoTokenizer:
        return OpenVinoTokenizer(path)


class OnnxRuntimeGenAiDecoder:
    """A model in memory, whose sequences share the weights."""

    def __init__(self, path: Path, threads: int | None) -> None:
        native = import_genai()
        own = {"intra_op_num_threads": threads or len(os.sched_getaffinity(0))}
        try:
            config = native.Config(os.fspath(path.parent))
            config.overlay(json.dumps({"model": {"decoder": {"session_options": own}}}))
            self.model = native.Model(config)
            told = json.loads(path.read_text(encoding="utf-8"))["model"]
            self.most, self.vocabulary = int(told["context_length"]), int(told["vocab_size"])
        except Exception as error:
            raise Failed(f"onnxruntime_genai cannot load {path.name}: {' '.join(str(error).split())[:500]}") from None

    def begin(self) -> OnnxRuntimeGenAiState:
        return OnnxRuntimeGenAiState(self)

    def operators(self, context: np.ndarray, repeats: int = 10) -> list[OperatorTime]:
        raise Failed("ONNX Runtime GenAI does not tell the times of its operators", "profile the model on openvino")

    def close(self) -> None:
        self.model = None


class OnnxRuntimeGenAiState:
    """Some sequences under way: what may be looked at of each is what its memory holds, cut back and gone on from."""

    def __init__(self, decoder: OnnxRuntimeGenAiDecoder) -> None:
        self._decoder = decoder
        self._sequences: list[OnnxRuntimeGenAiSequence] = []
        self._fed: Any = None

    def feed(self, ids: np.ndarray, mask: np.ndarray, positions: np.ndarray, rows: int) -> np.ndarray:
        """Logits [sequences, rows, vocabulary] of the last `rows` tokens; those of what is masked are 0.

        `ids` and `positions` are [sequences, fed]; `mask` is [sequences, everything fed so far and now]. Positions are
        those in what may be looked at, as everywhere.
        """
        import numpy as np

        self._fed = ids if self._fed is None else np.concatenate([self._fed, ids], axis=1)
        while len(self._sequences) < len(ids):
            self._sequences.append(OnnxRuntimeGenAiSequence(self._decoder))
        logits = np.zeros((len(ids), rows, self._decoder.vocabulary), np.float32)
        for row, text in enumerate(self._fed):
            seen = mask[row].astype(bool)
            asked = seen[len(seen) - rows :]
            logits[row, asked] = self._sequences[row].read(text[seen], int(asked.sum()))
        return logits

    def reset(self) -> None:
        """Forget everything that was fed."""
        self._fed = None
        for sequence in self._sequences:
            sequence.cut(0)


class OnnxRuntimeGenAiSequence:
    """The keys and values of one text."""

    def __init__(self, decoder: OnnxRuntimeGenAiDecoder) -> None:
        self._decoder, self._room, self._generator = decoder, 0, None
        self._held: Any = ()

    def read(self, text: np.ndarray, rows: int) -> np.ndarray:
        """Logits [rows, vocabulary] of the last `rows` tokens of `text` [length]; what is held of it is not read again.

        Raises `Failed` for a text that is longer than the model takes.
        """
        import numpy as np

        if len(text) > self._room:
            self._grow(len(text))
        most = min(len(self._held), len(text) - rows)
        differ = np.flatnonzero(np.asarray(self._held[:most]) != text[:most])
        self.cut(int(differ[0]) if differ.size else most)
        logits = np.zeros((0, self._decoder.vocabulary), np.float32)
        try:
            for begin in range(len(self._held), len(text), READ_AT_ONCE):
                piece = text[begin : begin + READ_AT_ONCE]
                self._generator.append_tokens(piece.astype(np.int32))  # type: ignore[attr-defined]
                found = self._generator.get_output("logits")[0]  # type: ignore[attr-defined]
                logits = np.concatenate([logits, found])[-rows:] if rows else logits
        except Exception as error:
            self._generator, self._room, self._held = None, 0, ()  # what it holds now is not known
            raise Failed(f"onnxruntime_genai: {' '.join(str(error).split())[:500]}") from None
        self._held = text.copy()
        return logits

    def cut(self, length: int) -> None:
        """Keep the first `length` tokens alone."""
        if length < len(self._held):
            self._generator.rewind_to(length)  # type: ignore[attr-defined]
            self._held = self._held[:length]

    def _grow(self, tokens: int) -> None:
        """Room for so many tokens, with nothing held."""
        native, most = import_genai(), self._decoder.most
        if tokens > most:
            raise Failed(f"a text of {tokens} tokens is longer than the {most} that this model takes", "shorten it")
        room = max(LEAST_ROOM, self._room)
        while room < tokens:
            room *= 2
        params = native.GeneratorParams(self._decoder.model)
        params.set_search_options(max_length=min(room, most), do_sample=False)
        self._generator, self._room, self._held = native.Generator(self._decoder.model, params), min(room, most), ()


def import_genai() -> Any:
    """ONNX Runtime GenAI, its telemetry off."""
    try:
        import onnxruntime_genai
    except Exception as error:
        raise Failed(f"onnxruntime_genai cannot be imported: {type(error).__name__}: {error}") from None
    onnxruntime_genai.disable_telemetry_events()
    return onnxruntime_genai
