"""Silero VAD at 16 kHz: its ONNX with the batch axis first everywhere, its TorchScript, and frames of a made-up voice.

The published graph has the state as [2, batch, 128]. hasten batches along the first axis, so the state is turned
around at both ends here; nothing else changes. Its `If` operators stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.common import downloads
from benchmarks.fetch import Pinned, fetch
from hasten.isolate import run as in_worker

if TYPE_CHECKING:
    import numpy as np

WHEEL = ("silero-vad", "6.2.3", "7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8")
GRAPH = Pinned(
    *WHEEL,
    "silero_vad/data/silero_vad_16k_op15.onnx",
    "7ed98ddbad84ccac4cd0aeb3099049280713df825c610a8ed34543318f1b2c49",
)
SCRIPT = Pinned(
    *WHEEL, "silero_vad/data/silero_vad.jit", "e1122837f4154c511485fe0b9c64455f7b929c96fbb8d79fbdb336383ebd3720"
)
RATE, FRAME, CONTEXT = 16000, 512, 64
FRAMES = 1200


def model() -> Path:
    path = downloads() / "silero-vad-16k" / "model.onnx"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        in_worker("benchmarks.inference.silero:make", {"graph": str(fetch(GRAPH)), "into": str(path)})
    return path


def make(payload: dict[str, Any], scope: Any) -> None:
    """Worker function: 16 kHz as a constant, and the state with its batch axis first."""
    import numpy as np
    import onnx
    from onnx import helper, numpy_helper

    proto = onnx.load(payload["graph"])
    graph = proto.graph
    state, state_out = graph.input[1], graph.output[1]
    inside = {state.name: "state_inside", state_out.name: "state_out_inside"}
    for node in graph.node:
        _rename(node, inside)
    graph.initializer.append(numpy_helper.from_array(np.array(RATE, np.int64), "sr"))
    graph.node.insert(0, helper.make_node("Transpose", [state.name], ["state_inside"], perm=[1, 0, 2]))
    graph.node.append(helper.make_node("Transpose", ["state_out_inside"], [state_out.name], perm=[1, 0, 2]))
    del graph.input[2]
    for value, axes in ((graph.input[0], ["batch", FRAME + CONTEXT]), (state, ["batch", 2, 128])):
        value.CopyFrom(helper.make_tensor_value_info(value.name, onnx.TensorProto.FLOAT, axes))
    state_out.CopyFrom(helper.make_tensor_value_info(state_out.name, onnx.TensorProto.FLOAT, ["batch", 2, 128]))
    onnx.save(proto, payload["into"])


def _rename(node: Any, names: dict[str, str]) -> None:
    """In the node and in the branches below it."""
    for values in (node.input, node.output):
        values[:] = [names.get(name, name) for name in values]
    for attribute in node.attribute:
        for inner in attribute.g.node:
            _rename(inner, names)


def samples() -> Iterator[dict[str, np.ndarray]]:
    """Frames as the detector sees them in a stream: 64 samples of the frame before, 512 of this one, and its state."""
    import numpy as np
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(str(model()), options, providers=["CPUExecutionProvider"])
    sound = voice(FRAMES * FRAME / RATE)
    state = np.zeros((1, 2, 128), np.float32)
    context = np.zeros(CONTEXT, np.float32)
    for at in range(0, FRAMES * FRAME, FRAME):
        frame = np.concatenate([context, sound[at : at + FRAME]])
        yield {"input": frame, "state": state[0]}
        context = frame[-CONTEXT:]
        _, state = session.run(None, {"input": frame[None], "state": state})


def voice(seconds: float, seed: int = 0) -> np.ndarray:
    """A made-up voice, float32 in -1..1: syllables of a buzz through the resonances of vowels, hisses and pauses."""
    import numpy as np
    from scipy.signal import lfilter

    vowels = ((700, 1220, 2600), (300, 2300, 3000), (500, 1800, 2500), (320, 800, 2240), (450, 900, 2400))
    draw = np.random.default_rng(seed)
    parts: list[np.ndarray] = []
    length = 0
    while length < seconds * RATE:
        count = int(RATE * draw.uniform(0.12, 0.35))
        kind = draw.choice(3, p=(0.65, 0.15, 0.2))
        if kind == 0:
            pitch = draw.uniform(90, 220) * np.linspace(1, draw.uniform(0.8, 1.15), count)
            phase = np.cumsum(pitch) / RATE
            sound = np.diff(np.floor(phase), prepend=0.0) + draw.normal(0, 0.02, count)
            for centre in vowels[draw.integers(len(vowels))]:
                pole = np.exp(-np.pi * 90 / RATE) * np.exp(2j * np.pi * centre / RATE)
                sound = lfilter([1.0], [1.0, -2 * pole.real, abs(pole) ** 2], sound)
            sound *= np.hanning(count) ** 0.5 * draw.uniform(0.2, 0.7) / (np.abs(sound).max() + 1e-9)
        elif kind == 1:
            sound = np.diff(draw.normal(0, 0.05, count + 1)) * np.hanning(count)
        else:
            sound = np.zeros(count)
        parts.append(sound + draw.normal(0, 0.003, count))
        length += count
    found: np.ndarray = np.concatenate(parts)[: int(seconds * RATE)].astype(np.float32)
    return found


def module() -> Any:
    """The TorchScript of the same wheel, from frames and states to probabilities and states."""
    import torch

    class Detector(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.jit.load(str(fetch(SCRIPT)))._model

        def forward(self, frames: Any, states: Any) -> Any:
            out, state = self.inner(frames, states.transpose(0, 1))
            return out, state.transpose(0, 1)

    return Detector().eval()
