"""A speech model in OpenVINO: it hears clips, keeps what the decoder looks at, and gives the next token's logits."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from hasten.errors import Failed, InvalidInput
from hasten.runtimes.base import Availability, OperatorTime, Settings, check_settings
from hasten.runtimes.openvino_graph import OPTIONS, PRECISIONS, Graph, readable

if TYPE_CHECKING:
    import numpy as np

    from hasten.model import Model

KEPT_IN = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}
"""What the decoder's keys and values are kept in. Not in OpenVINO's own 8 bits: once clips have left a batch, a later
one with more clips got NaN or other texts (2026.4.1). They are few, too: 448 positions at most."""


class OpenVinoSpeech:
    """OpenVINO as it runs speech models."""

    name = "openvino"

    def availability(self) -> Availability:
        try:
            return Availability(True, version=version("openvino"))
        except PackageNotFoundError:
            return Availability(False, "the package openvino is not installed", "pip install openvino")

    def listener(self, parts: Mapping[str, Model], settings: Settings) -> OpenVinoListener:
        """`parts` are features, encoder and main, the decoder."""
        check_settings(self.name, settings, tuple(PRECISIONS), OPTIONS)
        return OpenVinoListener(parts, settings)


class OpenVinoListener:
    """The three compiled parts. Clips that are heard together have a state of their own: see `begin`."""

    def __init__(self, parts: Mapping[str, Model], settings: Settings) -> None:
        mmap = bool(settings.options.get("mmap", True))
        others = dict(settings.options)
        if "kv_cache_precision" in others:
            raise InvalidInput(
                "keys and values of a speech model are kept in its precision", "leave it out of [runtime]"
            )
        self._settings = Settings(settings.precision, settings.threads, settings.streams, None, others)
        self._graphs = {name: Graph(parts[name], mmap) for name in ("features", "encoder", "main")}
        self._lock = threading.Lock()
        self.compiled = self._compile()

    def _compile(self) -> Mapping[str, Any]:
        plain = self._settings
        # Spectra lose what bf16 drops: a quiet sound beside a loud one. They are a hundredth of the arithmetic.
        exact = Settings("fp32", plain.threads, plain.streams, None, plain.options)
        kept = {"KV_CACHE_PRECISION": KEPT_IN.get(plain.precision or "", "f32")}
        return {
            "features": self._graphs["features"].compile(exact, {}),
            "encoder": self._graphs["encoder"].compile(plain, {}),
            "main": self._graphs["main"].compile(plain, kept),
        }

    def renew(self, failed: Mapping[str, Any]) -> None:
        """Compile anew in place of `failed`: after a failure, what it is given next fails too (`OpenVinoSession`)."""
        with self._lock:
            if self.compiled is failed:
                self.compiled = self._compile()

    def begin(self) -> OpenVinoHearing:
        return OpenVinoHearing(self)

    def operators(self, audio: np.ndarray, repeats: int = 10) -> list[OperatorTime]:
        """Median times of the encoder for clips [clips, samples]: it takes most of the time of short texts."""
        from hasten.runtimes.openvino_profile import profile

        settings = Settings(self._settings.precision, self._settings.threads, 1, None, self._settings.options)
        compiled = self._graphs["encoder"].compile(settings, {"PERF_COUNT": True})
        return profile(compiled, {0: self.compiled["features"]([audio])[0]}, repeats)

    def close(self) -> None:
        self.compiled = {}


class OpenVinoHearing:
    """Some clips under way together, and the tokens of each so far."""

    def __init__(self, listener: OpenVinoListener) -> None:
        self._listener = listener
        self._take()
        self._names = [port.any_name for port in self._compiled["encoder"].outputs]
        self._rows: Any = None
        self._cross: dict[str, Any] = {}

    def _take(self) -> None:
        self._compiled = self._listener.compiled
        self._features, self._encoder, self._decoder = (
            self._compiled[name].create_infer_request() for name in ("features", "encoder", "main")
        )

    def _failed(self, error: Exception) -> Failed:
        self._listener.renew(self._compiled)
        return Failed(f"openvino: {readable(error)}")

    def hear(self, audio: np.ndarray) -> None:
        """Take in clips [clips, samples] of 16 kHz, with silence after the shorter ones; samples in steps of 320."""
        import numpy as np

        if self._compiled is not self._listener.compiled:
            self._take()
        try:
            self._decoder.reset_state()
            self._features.infer([audio], share_inputs=True)
            self._encoder.infer([self._features.get_output_tensor(0)], share_inputs=True)
        except Exception as error:
            raise self._failed(error) from None
        self._rows = np.arange(len(audio), dtype=np.int32)
        self._cross = {name: self._encoder.get_output_tensor(i) for i, name in enumerate(self._names)}

    def feed(self, ids: np.ndarray, at: int) -> np.ndarray:
        """Logits [clips, vocabulary] after the tokens `ids` [clips, fed], the first of which stands at `at`.

        The answer is overwritten by the next call.
        """
        import numpy as np

        inputs = {
            "input_ids": np.ascontiguousarray(ids, np.int64),
            "position_ids": np.arange(at, at + ids.shape[1], dtype=np.int64),
            "beam_idx": self._rows,
            **self._cross,
        }
        self._cross = {}  # the request keeps the tensors that it was given
        try:
            self._decoder.infer(inputs, share_inputs=True)
            logits: np.ndarray = self._decoder.get_output_tensor(0).data
        except Exception as error:
            raise self._failed(error) from None
        self._rows = np.arange(len(ids), dtype=np.int32)
        return logits

    def keep(self, rows: np.ndarray) -> None:
        """Go on with these clips alone, in this order."""
        import numpy as np
        from openvino import Tensor

        self._rows = np.ascontiguousarray(rows, np.int32)
        for name in self._names:
            self._cross[name] = Tensor(np.ascontiguousarray(self._decoder.get_tensor(name).data[rows]))
