"""What shape every value of an ONNX graph has, found by running it: a run shows what inference cannot tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hasten.errors import Failed
from hasten.levers.modelfile import EXTERNAL_ABOVE_BYTES, weight_bytes
from hasten.model import Signature
from hasten.runner.padding import stack
from hasten.workload import Padding

Shape = tuple[int, ...]
Batch = Mapping[str, np.ndarray]
PREFIX = "shape_of_"


@dataclass(frozen=True)
class Shapes:
    """The shape of each value in each probe, by name; values that are not tensors of numbers are not there."""

    seen: Mapping[str, tuple[Shape, ...]]

    def of(self, value: Any) -> tuple[Shape, ...] | None:
        """The shapes of an onnx_ir value, one for each probe; a weight has one shape in all of them."""
        if value is None:
            return None
        if value.const_value is not None:
            count = len(next(iter(self.seen.values()), ()))
            return (tuple(int(size) for size in value.const_value.shape),) * count
        return self.seen.get(value.name)

    def rank(self, value: Any) -> int | None:
        found = self.of(value)
        return len(found[0]) if found and len({len(shape) for shape in found}) == 1 else None

    def sizes(self, value: Any, axis: int) -> Shape | None:
        """The size along `axis` in each probe."""
        found = self.of(value)
        return tuple(shape[axis] for shape in found) if found else None


def batches(samples: Sequence[Batch], padding: Padding | None, signature: Signature) -> list[Batch]:
    """Batches that vary in whatever the model lets vary. Raises `Failed` where an axis varies and no sample shows how.

    `samples` come without their batch axis, up to three of them of different lengths.
    """
    rows = [(1, sample) for sample in samples]
    if all(
        tensor.shape is None or not tensor.shape or not isinstance(tensor.shape[0], int) for tensor in signature.inputs
    ):
        rows.append((2, samples[0]))
    if padding is not None and padding.verified and len(samples) == 1:
        rows.append((1, _shorter(samples[0], padding)))
    made = [_batch(sample, count, padding) for count, sample in rows]
    for tensor in signature.inputs:
        for axis, size in enumerate(tensor.shape or ()):
            if axis and not isinstance(size, int) and len({batch[tensor.name].shape[axis] for batch in made}) == 1:
                raise Failed(
                    f"axis {axis} of {tensor.name} may vary, and the samples do not show how the graph follows it",
                    "give samples of several sizes, or a model of fixed size",
                )
    return made


def _batch(sample: Batch, count: int, padding: Padding | None) -> Batch:
    if padding is None or not padding.verified:
        return {name: np.stack([array] * count) for name, array in sample.items()}
    length = sample[next(iter(padding.values))].shape[padding.axis]
    return stack([sample] * count, padding, length)


def _shorter(sample: Batch, padding: Padding) -> Batch:
    cut = (slice(None),) * padding.axis + (slice(0, -1),)
    return {name: array[cut] if name in padding.values else array for name, array in sample.items()}


def look(proto: Any, probes: Sequence[Batch], folder: Path) -> Shapes:
    """Run the graph on each probe, with the shape of every value as one more output."""
    import copy

    import onnx

    probe = copy.deepcopy(proto)
    names = [name for node in probe.graph.node for name in node.output if name]
    for name in names:
        made = PREFIX + name
        probe.graph.node.append(onnx.helper.make_node("Shape", [name], [made], name=made))
        probe.graph.output.append(onnx.helper.make_tensor_value_info(made, onnx.TensorProto.INT64, None))
    found: dict[str, list[Shape]] = {}
    for run in run_all(probe, probes, folder, optimise=False):
        for name, value in run.items():
            if name.startswith(PREFIX):
                found.setdefault(name.removeprefix(PREFIX), []).append(tuple(int(size) for size in value))
    for batch in probes:
        for name, array in batch.items():
            found.setdefault(name, []).append(array.shape)
    return Shapes({name: tuple(shapes) for name, shapes in found.items()})


def run_all(proto: Any, probes: Sequence[Batch], folder: Path, optimise: bool) -> list[dict[str, np.ndarray]]:
    """Every output of the graph on each probe. Raises `Failed` where ONNX Runtime cannot run it."""
    import os

    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    import onnx
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    if not optimise:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    path, large = folder / "probe.onnx", weight_bytes(proto) > EXTERNAL_ABOVE_BYTES
    onnx.save(proto, str(path), save_as_external_data=large, location="probe.data" if large else None)
    try:
        session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        names = [value.name for value in session.get_outputs()]
        known = {value.name for value in session.get_inputs()}
        feeds = [{name: array for name, array in batch.items() if name in known} for batch in probes]
        return [dict(zip(names, session.run(names, feed), strict=True)) for feed in feeds]
    except Exception as error:
        raise Failed(f"ONNX Runtime cannot run the graph: {' '.join(str(error).split())[:300]}") from None
    finally:
        path.unlink(missing_ok=True)
        (folder / "probe.data").unlink(missing_ok=True)
