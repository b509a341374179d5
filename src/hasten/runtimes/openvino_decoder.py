"""A language model in OpenVINO: fed tokens, it keeps their keys and values, and gives the logits of those asked for.

Only the rows asked for reach the last product, which for a short prompt is most of the arithmetic and nearly all of the
memory: logits of 512 tokens over a vocabulary of 49,152 are 100 MB.
"""

from __future__ import annotations

import os
import statistics
import threading
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.errors import Failed, InvalidInput
from hasten.runtimes.base import Availability, OperatorTime, Settings, check_settings, fitted
from hasten.runtimes.openvino_graph import OPTIONS, PRECISIONS, Graph, import_openvino, readable

if TYPE_CHECKING:
    import numpy as np

    from hasten.model import Model

TOKENIZERS = "openvino_tokenizers"
ENDS = ("end_token_ids", "eos_token_id")
"""Where a tokenizer says what ends an answer: the first that it has counts."""
ROWS = "rows"
"""The input that `ask_for_rows` adds: which of the fed positions have their logits computed."""


class OpenVinoLanguage:
    """OpenVINO as it runs language models."""

    name = "openvino"

    def availability(self) -> Availability:
        for package in ("openvino", "openvino-tokenizers"):
            try:
                found = version(package)
            except PackageNotFoundError:
                return Availability(False, f"the package {package} is not installed", f"pip install {package}")
        return Availability(True, version=found)

    def decoder(self, model: Model, settings: Settings) -> OpenVinoDecoder:
        check_settings(self.name, settings, tuple(PRECISIONS), OPTIONS)
        return OpenVinoDecoder(model, settings)

    def tokenizer(self, path: Path) -> OpenVinoTokenizer:
        return OpenVinoTokenizer(path)


class OpenVinoDecoder:
    """A compiled decoder. Each sequence under way has a state of its own: see `begin`."""

    def __init__(self, model: Model, settings: Settings, extra: Mapping[str, Any] | None = None) -> None:
        graph = Graph(model, bool(settings.options.get("mmap", True)))
        missing = {"input_ids", "attention_mask", "position_ids"} - {t.name for t in model.signature.inputs}
        if missing:
            raise InvalidInput(f"{model.path.name} is no decoder: it has no input {', '.join(sorted(missing))}")
        self._beams = any(tensor.name == "beam_idx" for tensor in model.signature.inputs)
        self._model, self._settings, self._graph, self._extra = model, settings, graph, extra or {}
        ask_for_rows(graph.model)
        self._lock = threading.Lock()
        self.compiled = graph.compile(settings, self._extra)

    def begin(self) -> OpenVinoState:
        return OpenVinoState(self, self._beams)

    def renew(self, failed: Any) -> None:
        """Compile anew in place of `failed`: after a failure, what it is given next fails too (`OpenVinoSession`)."""
        with self._lock:
            if self.compiled is failed:
                self.compiled = self._graph.compile(self._settings, self._extra)

    def operators(self, context: np.ndarray, repeats: int = 10) -> list[OperatorTime]:
        """Median times of one decoding step after `context` (token numbers [1, length]).

        Loads a second time, with counters on; kernels and fusions are the same.
        """
        import numpy as np

        single = Settings(self._settings.precision, self._settings.threads, 1, None, self._settings.options)
        state = OpenVinoDecoder(self._model, single, {"PERF_COUNT": True}).begin()
        whole = np.ones((1, context.shape[1] + repeats), np.int64)
        state.feed(context, whole[:, : context.shape[1]], np.arange(context.shape[1])[None], 1)
        found: dict[str, list[tuple[float, str, str]]] = {}
        for step in range(1, repeats + 1):
            length = context.shape[1] + step
            state.feed(context[:, -1:], whole[:, :length], np.array([[length - 1]]), 1)
            for info in state.request.get_profiling_info():
                spent = info.real_time.total_seconds() * 1e6
                if spent:
                    found.setdefault(info.node_name, []).append((spent, info.node_type, info.exec_type))
        times = [
            OperatorTime(name, each[0][1], statistics.median(spent for spent, _, _ in each), each[0][2])
            for name, each in found.items()
        ]
        return fitted(times, sum(time.microseconds for time in times))

    def close(self) -> None:
        self.compiled = None


class OpenVinoState:
    """The keys and values of some sequences that are decoded together."""

    def __init__(self, decoder: OpenVinoDecoder, beams: bool) -> None:
        self._decoder, self._beams = decoder, beams
        self._take()

    def _take(self) -> None:
        self._compiled = self._decoder.compiled
        self.request = self._compiled.create_infer_request()

    def feed(self, ids: np.ndarray, mask: np.ndarray, positions: np.ndarray, rows: int) -> np.ndarray:
        """Logits [sequences, rows, vocabulary] of the last `rows` of the tokens fed.

        `ids` and `positions` are [sequences, fed]; `mask` is [sequences, everything fed so far and now], 0 where
        nothing may look: padding, or drafts that were turned down. The answer is overwritten by the next call.
        """
        import numpy as np

        fed = ids.shape[1]
        inputs: dict[str, Any] = {
            "input_ids": np.ascontiguousarray(ids, np.int64),
            "attention_mask": np.ascontiguousarray(mask, np.int64),
            "position_ids": np.ascontiguousarray(positions, np.int64),
            ROWS: np.arange(fed - rows, fed, dtype=np.int64),
        }
        if self._beams:
            inputs["beam_idx"] = np.arange(len(ids), dtype=np.int32)
        try:
            self.request.infer(inputs, share_inputs=True)
            logits: np.ndarray = self.request.get_output_tensor(0).data
        except Exception as error:
            self._decoder.renew(self._compiled)
            raise Failed(f"openvino: {readable(error)}") from None
        return logits

    def reset(self) -> None:
        """Forget everything that was fed."""
        if self._compiled is self._decoder.compiled:
            self.request.reset_state()
        else:
            self._take()


class OpenVinoTokenizer:
    """The tokenizer and detokenizer that lie beside each other as OpenVINO models.

    A compiled model that is called has one request, which threads must not share: they take turns.
    """

    def __init__(self, path: Path) -> None:
        ov = import_openvino()
        self._lock = threading.Lock()
        try:
            __import__(TOKENIZERS)  # teaches OpenVINO the operators of text
        except ImportError:
            raise InvalidInput(
                "openvino-tokenizers is not installed",
                "install it",
                "pip install openvino-tokenizers",
            ) from None
        core = ov.Core()
        try:
            model = core.read_model(os.fspath(path))
            told = [str(model.rt_info[name].value) for name in ENDS if name in model.rt_info]
            self._encode = core.compile_model(model, "CPU")
            back = path.with_name(path.name.replace("_tokenizer", "_detokenizer"))
            self._decode = core.compile_model(os.fspath(back), "CPU")
        except Exception as error:
            raise Failed(f"{path.name} is no tokenizer: {readable(error)}") from None
        self.ends = frozenset(int(token) for token in " ".join(told[:1]).split() if token.isdecimal())

    def encode(self, text: str) -> np.ndarray:
        """Token numbers [length] of one text."""
        import numpy as np

        with self._lock:
            return np.array(self._encode([text])["input_ids"][0], np.int64)

    def decode(self, ids: np.ndarray) -> str:
        """The text of token numbers [length]."""
        with self._lock:
            return str(self._decode([ids[None]])[0][0])


def ask_for_rows(model: Any) -> None:
    """Give the model an input that names which positions go into the last product, and so have logits.

    The product is found from the result backwards, through operators that work row by row.
    """
    import numpy as np
    from openvino import opset13 as op

    if any(ROWS in port.get_names() for port in model.inputs):
        return
    node = model.outputs[0].get_node().input_value(0).get_node()
    while node.get_type_name() in ("Convert", "Add", "Multiply", "Divide", "Tanh"):
        node = node.input_value(0).get_node()
    if node.get_type_name() != "MatMul":
        raise InvalidInput(f"the logits come from {node.get_type_name()}, not from a matrix product")
    rows = op.parameter([-1], np.int64, ROWS)
    rows.output(0).get_tensor().set_names({ROWS})
    hidden = node.input_value(0)
    picked = op.gather(hidden, rows, op.constant(np.int64(1)))
    node.input(0).replace_source_output(picked.output(0))
    model.add_parameters([rows])
    model.validate_nodes_and_infer_types()
