"""llama.cpp: runs language models straight from their GGUF files, weights in their own few bits."""

from __future__ import annotations

import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.errors import Failed, InvalidInput
from hasten.model import Model
from hasten.runtimes.base import Availability, OperatorTime, Settings, check_settings

if TYPE_CHECKING:
    import numpy as np

KV_CACHE = {"f16": "GGML_TYPE_F16", "q8_0": "GGML_TYPE_Q8_0"}
LLAMA_OPTIONS = {
    "kv_cache_precision": "what keys and values are kept in: f16 (default) or q8_0",
    "n_batch": "how many tokens of prompts go through the model at once (default 512)",
}
"""Keys of `[runtime]` that this runtime understands besides threads and streams."""
LEAST_CONTEXT = 512
"""Tokens that a new context has room for, of each sequence; it is doubled as texts grow."""


class LlamaCpp:
    """Loads GGUF files; language models are all it runs."""

    name = "llamacpp"
    package = "llama-cpp-python"
    accepts = frozenset({"gguf"})
    precisions: tuple[str, ...] = ()
    programs = frozenset({"generate"})
    language = "hasten.runtimes.llamacpp:LlamaCppLanguage"

    def availability(self) -> Availability:
        return LlamaCppLanguage().availability()

    def load(self, model: Model, settings: Settings) -> Any:
        raise InvalidInput(
            "runtime llamacpp runs language models alone", 'use name = "openvino" or name = "onnxruntime"'
        )


class LlamaCppLanguage:
    """llama.cpp as it runs language models."""

    name = "llamacpp"

    def availability(self) -> Availability:
        try:
            return Availability(True, version=version("llama-cpp-python"))
        except PackageNotFoundError:
            return Availability(
                False, "the package llama-cpp-python is not installed", "pip install 'hasten[llamacpp]'"
            )

    def decoder(self, model: Model, settings: Settings) -> LlamaCppDecoder:
        check_settings(self.name, settings, (), LLAMA_OPTIONS)
        kept, batch = settings.options.get("kv_cache_precision", "f16"), settings.options.get("n_batch", 512)
        if kept not in KV_CACHE:
            raise InvalidInput(f"llama.cpp keeps no keys and values in {kept!r}", f"use one of: {', '.join(KV_CACHE)}")
        if not isinstance(batch, int) or isinstance(batch, bool) or batch < 1:
            raise InvalidInput(f"n_batch = {batch!r} makes no sense", "give a whole number from 1 up")
        return LlamaCppDecoder(model.path, settings.threads, kept, batch)

    def tokenizer(self, path: Path) -> LlamaCppTokenizer:
        return LlamaCppTokenizer(path)


class LlamaCppDecoder:
    """A model in memory. Each state has a context of its own and shares the weights."""

    def __init__(self, path: Path, threads: int | None, kept: str, batch: int) -> None:
        self._loaded = GgufFile(path, False)
        self.vocabulary = self._loaded.vocabulary
        self._threads, self._kept, self.batch = threads or len(os.sched_getaffinity(0)), kept, batch

    def begin(self) -> LlamaCppState:
        return LlamaCppState(self)

    def context(self, sequences: int, tokens: int) -> Any:
        """A context with room for `tokens` of each of `sequences`."""
        import llama_cpp as native

        params = native.llama_context_default_params()
        params.n_ctx, params.n_seq_max = sequences * tokens, sequences
        params.n_batch, params.n_ubatch, params.n_outputs_max = self.batch, self.batch, self.batch
        params.n_threads = params.n_threads_batch = self._threads
        params.type_k = params.type_v = getattr(native, KV_CACHE[self._kept])
        params.swa_full = True  # what lies outside a sliding window may be looked at after drafts were turned down
        params.kv_unified = False
        found = native.llama_init_from_model(self._loaded.model, params)
        if not found:
            raise Failed(f"llamacpp: no context of {sequences} x {tokens} tokens", "use smaller batches or texts")
        return found

    def operators(self, context: np.ndarray, repeats: int = 10) -> list[OperatorTime]:
        raise Failed("llama.cpp does not tell the times of its operators", "see hasten bench instead")

    def close(self) -> None:
        self._loaded.close()


class LlamaCppState:
    """The keys and values of some sequences that are decoded together.

    Of each sequence `_slots` says of everything fed which position it has in llama.cpp's memory, None where it is not
    there: padding is never put in, and what a mask turns off is removed.
    """

    def __init__(self, decoder: LlamaCppDecoder) -> None:
        self._decoder, self._context, self._sequences, self._room = decoder, None, 0, 0
        self._slots: list[list[tuple[int, int] | None]] = []

    def feed(self, ids: np.ndarray, mask: np.ndarray, positions: np.ndarray, rows: int) -> np.ndarray:
        """Logits [sequences, rows, vocabulary] of the last `rows` tokens; those of padding are 0.

        `ids` and `positions` are [sequences, fed]; `mask` is [sequences, everything fed so far and now]. What a mask
        turned off stays off.
        """
        import numpy as np

        count, fed = ids.shape
        if not self._slots:
            self._slots = [[] for _ in range(count)]
        before = mask.shape[1] - fed
        off = [
            [at for at in range(before) if own[at] is not None and not mask[row, at]]
            for row, own in enumerate(self._slots)
        ]
        longest = 0
        for row, own in enumerate(self._slots):
            kept = sum(slot is not None for slot in own) - len(off[row])
            longest = max(longest, kept + int(mask[row, before:].sum()))
        fits = count <= self._sequences and longest <= self._room
        for row, gone in enumerate(off):
            self._forget(row, gone, fits)
        if not fits:
            self._grow(count, longest)
        logits = np.zeros((count, rows, self._decoder.vocabulary), np.float32)
        tokens = []
        for row in range(count):
            for at in range(fed):
                seen = bool(mask[row, before + at])
                self._slots[row].append((int(ids[row, at]), int(positions[row, at])) if seen else None)
                if seen:
                    tokens.append((int(ids[row, at]), int(positions[row, at]), row, at - (fed - rows)))
        self._decode(tokens, logits)
        return logits

    def reset(self) -> None:
        """Forget everything that was fed."""
        import llama_cpp as native

        self._slots = []
        if self._context is not None:
            native.llama_memory_clear(native.llama_get_memory(self._context), False)

    def _forget(self, row: int, gone: list[int], stays: bool) -> None:
        """Remove what was fed to a sequence as the tokens `gone`; from the context, too, where it `stays`."""
        import llama_cpp as native

        own = self._slots[row]
        for at in gone:
            slot, own[at] = own[at], None
            if not stays or slot is None:
                continue
            memory = native.llama_get_memory(self._context)
            if not native.llama_memory_seq_rm(memory, row, slot[1], slot[1] + 1):
                raise Failed("this model's memory cannot forget single tokens", "leave lookup and prefix out")

    def _grow(self, sequences: int, tokens: int) -> None:
        """A larger context, which reads again what the old one held."""
        room = max(LEAST_CONTEXT, self._room)
        while room < tokens:
            room *= 2
        self.close()
        self._context = self._decoder.context(sequences, room)
        self._sequences, self._room = sequences, room
        held = [(*slot, row, -1) for row, own in enumerate(self._slots) for slot in own if slot is not None]
        self._decode(held, None)

    def _decode(self, tokens: list[tuple[int, int, int, int]], logits: np.ndarray | None) -> None:
        """Feed (token, position, sequence, row of `logits`, below 0 for none), as many at once as a batch holds."""
        import llama_cpp as native
        import numpy as np

        for begin in range(0, len(tokens), self._decoder.batch):
            piece = tokens[begin : begin + self._decoder.batch]
            batch = native.llama_batch_init(len(piece), 0, 1)
            try:
                batch.n_tokens = len(piece)
                for i, (token, position, sequence, row) in enumerate(piece):
                    batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, position, 1
                    batch.seq_id[i][0], batch.logits[i] = sequence, row >= 0
                code = native.llama_decode(self._context, batch)
                if code:
                    raise Failed(f"llamacpp: decoding failed with code {code}")
                for i, (_, _, sequence, row) in enumerate(piece):
                    if logits is not None and row >= 0:
                        found = native.llama_get_logits_ith(self._context, i)
                        logits[sequence, row] = np.ctypeslib.as_array(found, (self._decoder.vocabulary,))
            finally:
                native.llama_batch_free(batch)

    def close(self) -> None:
        if self._context is not None:
            import llama_cpp as native

            native.llama_free(self._context)
            self._context = None

    def __del__(self) -> None:
        self.close()


class LlamaCppTokenizer:
    """The tokenizer that a GGUF file holds."""

    def __init__(self, path: Path) -> None:
        import llama_cpp as native

        self._loaded = GgufFile(path, True)
        size = self._loaded.vocabulary
        self.ends = frozenset(i for i in range(size) if native.llama_vocab_is_eog(self._loaded.words, i))

    def encode(self, text: str) -> np.ndarray:
        """Token numbers [length] of one text."""
        import llama_cpp as native
        import numpy as np

        data = text.encode()
        found = (native.llama_token * (len(data) + 8))()
        count = native.llama_tokenize(self._loaded.words, data, len(data), found, len(found), True, True)
        if count < 0:
            raise Failed("llamacpp: a text has more tokens than bytes")
        return np.array(found[:count], np.int64)

    def decode(self, ids: np.ndarray) -> str:
        """The text of token numbers [length]."""
        import ctypes

        import llama_cpp as native

        tokens = (native.llama_token * len(ids))(*(int(token) for token in ids))
        room = 64 + 16 * len(ids)
        while True:
            text = ctypes.create_string_buffer(room)
            count = native.llama_detokenize(self._loaded.words, tokens, len(ids), text, room, True, False)
            if count >= 0:
                return text.raw[:count].decode(errors="replace")
            room = -count


class GgufFile:
    """A GGUF file in memory, without its weights where `words_only`. Raises `Failed` where llama.cpp cannot read it."""

    def __init__(self, path: Path, words_only: bool) -> None:
        try:
            import llama_cpp as native
        except Exception as error:
            raise Failed(f"llama_cpp cannot be imported: {type(error).__name__}: {error}") from None
        global _quiet
        _quiet = native.llama_log_callback(lambda *_: None)
        native.llama_log_set(_quiet, None)
        native.llama_backend_init()
        params = native.llama_model_default_params()
        params.vocab_only, params.n_gpu_layers = words_only, 0
        self.model = native.llama_model_load_from_file(os.fsencode(path), params)
        if not self.model:
            raise Failed(f"llamacpp cannot load {path.name}", "it may be damaged, or of a kind that it does not know")
        self.words = native.llama_model_get_vocab(self.model)
        self.vocabulary = int(native.llama_vocab_n_tokens(self.words))

    def close(self) -> None:
        import llama_cpp as native

        if self.model:
            native.llama_model_free(self.model)
            self.model = None


_quiet: Any = None
"""llama.cpp calls it, so that it must stay."""
