"""CTranslate2: runs Whisper with its own greedy decoding, and encoders of text without their padding."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from hasten.errors import Failed, InvalidInput
from hasten.model import Model
from hasten.runtimes.base import Availability, OperatorTime, Settings, check_settings

if TYPE_CHECKING:
    import numpy as np

    from hasten.runtimes.base import Batch

CT2_PRECISIONS = ("fp32",)
CT2_OPTIONS = {"compute_type": "CTranslate2's own name of what it computes in; what the file is kept in by default"}
"""Keys of `[runtime]` that this runtime understands besides precision, threads and streams."""
HOP_SAMPLES, WINDOW_SAMPLES = 160, 400
"""Of Whisper's spectrogram, at 16 kHz."""
POOLING = "pooling.json"
"""Beside an encoder's files: how sentence-transformers pools, `{"pooling": "mean" or "cls", "normalise": bool}`."""


class CTranslate2:
    """Loads folders that the lever `ctranslate2` converted."""

    name = "ctranslate2"
    package = "ctranslate2"
    accepts = frozenset({"ctranslate2"})
    precisions: tuple[str, ...] = CT2_PRECISIONS
    speech = "hasten.runtimes.ctranslate2:CTranslate2Speech"

    def availability(self) -> Availability:
        return CTranslate2Speech().availability()

    def load(self, model: Model, settings: Settings) -> CTranslate2Session:
        return CTranslate2Session(model, settings)


class CTranslate2Session:
    """An encoder of text in memory, with as many workers as streams; safe to call from several threads."""

    def __init__(self, model: Model, settings: Settings) -> None:
        import ctranslate2

        self._model = loaded_by_ctranslate2(ctranslate2.Encoder, model, settings)
        self._outputs = [tensor.name for tensor in model.signature.outputs]
        path = model.path.with_name(POOLING)
        self._pooling: Mapping[str, Any] | None = json.loads(path.read_text("utf-8")) if path.is_file() else None
        self._threads = ThreadPoolExecutor(settings.streams or 1, thread_name_prefix="ctranslate2-stream")

    def run(self, batch: Batch) -> dict[str, np.ndarray]:
        """Outputs for `input_ids` and `attention_mask` [texts, tokens], which is 1 up to the end of each text."""
        import ctranslate2
        import numpy as np

        missing = [name for name in ("input_ids", "attention_mask") if name not in batch]
        if missing:
            raise InvalidInput(f"the model's batch misses {', '.join(missing)}", "inputs: input_ids, attention_mask")
        mask = np.asarray(batch["attention_mask"]) != 0
        lengths = mask.sum(axis=1).astype(np.int32)
        if not lengths.all() or not np.array_equal(mask, np.arange(mask.shape[1]) < lengths[:, None]):
            raise InvalidInput("CTranslate2 takes masks that are 1 up to the end of a text", "pad texts at their end")
        ids = np.ascontiguousarray(batch["input_ids"], np.int32)
        try:
            found = self._model.forward_batch(
                ctranslate2.StorageView.from_array(ids), ctranslate2.StorageView.from_array(lengths)
            )
        except (RuntimeError, ValueError) as error:
            raise Failed(f"ctranslate2: {error}") from None
        hidden = np.array(found.last_hidden_state)
        if self._pooling is not None:
            return {self._outputs[0]: pooled_hidden(hidden, mask, **self._pooling)}
        given = {"last_hidden_state": hidden}
        if found.pooler_output is not None:
            given["pooler_output"] = np.array(found.pooler_output)
        lacking = [name for name in self._outputs if name not in given]
        if lacking:
            raise Failed(f"CTranslate2 does not give the output {lacking[0]} of this model")
        return {name: given[name] for name in self._outputs}

    def begin(self, batch: Batch) -> Callable[[], dict[str, np.ndarray]]:
        return self.submit(batch).result

    def submit(self, batch: Batch) -> Future[dict[str, np.ndarray]]:
        return self._threads.submit(self.run, batch)

    def operators(self, batch: Batch, repeats: int = 10) -> list[OperatorTime]:
        raise Failed("CTranslate2 does not tell the times of its operators", "see hasten bench instead")

    def close(self) -> None:
        self._threads.shutdown()
        self._model.unload_model()


class CTranslate2Speech:
    """CTranslate2 as it runs speech models."""

    name = "ctranslate2"

    def availability(self) -> Availability:
        try:
            return Availability(True, version=version("ctranslate2"))
        except PackageNotFoundError:
            return Availability(False, "the package ctranslate2 is not installed", "pip install 'hasten[ctranslate2]'")

    def listener(self, parts: Mapping[str, Model], settings: Settings) -> CTranslate2Listener:
        """`parts` are main, CTranslate2's folder, and features, the mel filters [bins, 201] as .npy."""
        return CTranslate2Listener(parts, settings)


class CTranslate2Listener:
    """A model in memory, with as many workers as streams."""

    def __init__(self, parts: Mapping[str, Model], settings: Settings) -> None:
        import ctranslate2
        import numpy as np

        self.filters = np.load(parts["features"].path, allow_pickle=False)
        self.model = loaded_by_ctranslate2(ctranslate2.models.Whisper, parts["main"], settings)

    def begin(self) -> CTranslate2Hearing:
        return CTranslate2Hearing(self)

    def operators(self, audio: np.ndarray, repeats: int = 10) -> list[OperatorTime]:
        raise Failed("CTranslate2 does not tell the times of its operators", "see hasten bench instead")

    def close(self) -> None:
        self.model.unload_model()


class CTranslate2Hearing:
    """Some clips under way together: what was heard of them."""

    def __init__(self, listener: CTranslate2Listener) -> None:
        self._listener, self._heard = listener, None

    def hear(self, audio: np.ndarray) -> None:
        """Take in clips [clips, samples] of 16 kHz, with silence after the shorter ones; samples in steps of 320."""
        import ctranslate2
        import numpy as np

        mel = np.stack([log_mel(clip, self._listener.filters) for clip in audio])
        self._heard = ctranslate2.StorageView.from_array(mel)

    def write(self, prompt: Sequence[int], suppress: Sequence[int], most: int) -> list[list[int]]:
        """The tokens of each clip, at most `most`; those that may not come first are in the folder's config.json."""
        assert self._heard is not None
        prompts = [list(prompt)] * self._heard.shape[0]
        try:
            # it writes at most half of max_length
            found = self._listener.model.generate(
                self._heard, prompts, beam_size=1, max_length=2 * most, suppress_tokens=list(suppress)
            )
        except (RuntimeError, ValueError) as error:
            raise Failed(f"ctranslate2: {error}") from None
        return [[int(token) for token in each.sequences_ids[0][:most]] for each in found]


def loaded_by_ctranslate2(kind: Any, model: Model, settings: Settings) -> Any:
    """The folder of `model` opened by `kind`, one of CTranslate2's classes, under `settings`."""
    import ctranslate2

    check_settings("ctranslate2", settings, CT2_PRECISIONS, CT2_OPTIONS)
    wanted = settings.options.get("compute_type", "default")
    known = sorted(ctranslate2.get_supported_compute_types("cpu"))
    if wanted not in ("default", *known):
        raise InvalidInput(f"CTranslate2 does not compute in {wanted!r} here", f"use one of: {', '.join(known)}")
    streams = settings.streams or 1
    threads = settings.threads or max(1, len(os.sched_getaffinity(0)) // streams)
    try:
        found = kind(str(model.path.parent), "cpu", compute_type=wanted, inter_threads=streams, intra_threads=threads)
    except (RuntimeError, ValueError) as error:
        raise Failed(f"ctranslate2 cannot load {model.path.parent.name}: {error}", "convert the model again") from None
    if settings.precision == "fp32" and not found.compute_type.endswith("float32"):
        raise InvalidInput(f"the model computes in {found.compute_type}, and [runtime] says fp32", "leave one out")
    return found


def pooled_hidden(hidden: np.ndarray, mask: np.ndarray, pooling: str, normalise: bool) -> np.ndarray:
    """One vector for each text: the mean of `hidden` [texts, tokens, width] where `mask` is set, or the first."""
    import numpy as np

    if pooling == "cls":
        found: np.ndarray = hidden[:, 0]
    else:
        share = mask / mask.sum(axis=1, keepdims=True)
        found = (share[:, None].astype(hidden.dtype) @ hidden)[:, 0]
    if normalise:
        found = found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)
    return found


def log_mel(audio: np.ndarray, filters: np.ndarray) -> np.ndarray:
    """Whisper's spectrogram [bins, frames] of one clip [samples], whose samples come in steps of `HOP_SAMPLES`.

    `filters` are [bins, 201]. As in openai/whisper (audio.py): Hann windows, base 10, eight orders of magnitude.
    """
    import numpy as np

    around = np.pad(audio, (WINDOW_SAMPLES // 2, WINDOW_SAMPLES // 2), mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(around, WINDOW_SAMPLES)[:-1:HOP_SAMPLES]
    hann = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW_SAMPLES) / WINDOW_SAMPLES)).astype(np.float32)
    turned = np.fft.rfft(windows * hann, axis=1)
    power = turned.real**2 + turned.imag**2
    logs = np.log10(np.maximum(filters @ power.T, 1e-10))
    found: np.ndarray = (np.maximum(logs, logs.max() - 8.0) + 4.0) / 4.0
    return np.ascontiguousarray(found, np.float32)
