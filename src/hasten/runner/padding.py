"""Finds how samples of different lengths become one batch, and proves it by running them padded and alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

from hasten.model import Signature, Tensor
from hasten.workload import Padding

if TYPE_CHECKING:
    import numpy as np

    Sample = Mapping[str, np.ndarray]
    Run = Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]


def infer(signature: Signature, samples: Sequence[Sample]) -> Padding | None:
    """A padding to verify, or None where all samples have the same shapes.

    Samples that differ in more than one axis, or inputs of one sample whose lengths differ, cannot be padded: the
    answer then has no values, is not verified, and says why.
    """
    shapes = {name: {sample[name].shape for sample in samples} for name in samples[0]} if samples else {}
    varying = {name: found for name, found in shapes.items() if len(found) > 1}
    if not varying:
        return None
    axes = {name: _varying_axes(found) for name, found in varying.items()}
    axis = min((a for found in axes.values() for a in found), default=0)
    for name, found in axes.items():
        if len(found) != 1:
            what = "ranks" if not found else "axes " + ", ".join(map(str, found))
            return Padding({}, axis, False, f"samples differ in the {what} of input {name}, not in one axis")
    if len({found[0] for found in axes.values()}) > 1:
        return Padding({}, axis, False, "the variable axis is not the same in every input")
    if any(len({sample[name].shape[axis] for name in varying}) > 1 for sample in samples):
        return Padding({}, axis, False, f"inputs of one sample differ in length: {', '.join(sorted(varying))}")
    dtypes = {tensor.name: tensor for tensor in signature.inputs}
    values = {
        name: float(candidates(dtypes.get(name) or Tensor(name, str(samples[0][name].dtype), None))[0])
        for name in varying
    }
    if any(samples[0][name].dtype.kind in "OUS" for name in varying):
        return Padding({}, axis, False, "text inputs cannot be padded")
    return Padding(values, axis, False, "not verified yet")


def candidates(tensor: Tensor) -> tuple[int, ...]:
    """Numbers to pad an input with, likeliest first: token numbers are padded with 0 or 1, all else with 0."""
    name = tensor.name.lower()
    known = ("mask", "type", "segment", "position", "length")
    if tensor.dtype.startswith(("int", "uint")) and not any(word in name for word in known):
        return (0, 1)
    return (0,)


def length_of(sample: Sample, padding: Padding) -> int:
    """The sample's size along the variable axis."""
    return int(sample[next(iter(padding.values))].shape[padding.axis])


def verify(padding: Padding, run: Run, samples: Sequence[Sample], tolerance: float = 1e-3) -> Padding:
    """`padding` with `verified`, `outputs` and, where the check fails, `reason`.

    `run` takes a batch (arrays with a batch axis). The shortest sample, and one of middle length, run alone and padded
    beside the longest; outputs must agree within `tolerance` of the output's largest magnitude, and whole numbers
    exactly.
    """
    if not padding.values:
        return padding
    ordered = sorted(samples, key=lambda sample: length_of(sample, padding))
    picked = [ordered[0], ordered[len(ordered) // 2], ordered[-1]]
    lengths = [length_of(sample, padding) for sample in picked]
    try:
        alone = [run({name: array[None] for name, array in sample.items()}) for sample in picked]
        outputs = _length_axes(alone, lengths)
    except _Unpaddable as found:
        return replace(padding, verified=False, reason=str(found))
    reason = "no candidate value was tried"
    names = list(padding.values)
    choices = [
        (padding.values[name], *(c for c in _whole(picked[0][name], name) if c != padding.values[name]))
        for name in names
    ]
    for values in product(*choices):
        tried = replace(padding, values=dict(zip(names, values, strict=True)), outputs=outputs)
        try:
            together = _padded(run, picked, tried, lengths[-1])
        except Exception as error:  # a model may refuse the value itself, such as a token number out of range
            reason = f"the padded batch does not run: {error}"
            continue
        reason = _difference(together, alone, lengths, outputs, tolerance)
        if not reason:
            return replace(tried, verified=True, reason="")
    return replace(padding, verified=False, reason=reason, outputs=outputs)


def stack(samples: Sequence[Sample], padding: Padding, length: int) -> dict[str, np.ndarray]:
    """One batch of samples padded to `length`."""
    import numpy as np

    batch = {}
    for name, first in samples[0].items():
        if name not in padding.values:
            batch[name] = np.stack([sample[name] for sample in samples])
            continue
        shape = list(first.shape)
        shape[padding.axis] = length
        rows = np.full((len(samples), *shape), padding.values[name], first.dtype)
        for row, sample in zip(rows, samples, strict=True):
            row[(slice(None),) * padding.axis + (slice(sample[name].shape[padding.axis]),)] = sample[name]
        batch[name] = rows
    return batch


def _padded(run: Run, samples: Sequence[Sample], padding: Padding, length: int) -> Mapping[str, np.ndarray]:
    """Outputs of the samples padded to `length`: in one batch, or one by one for a model that takes no more."""
    import numpy as np

    try:
        return run(stack(samples, padding, length))
    except Exception:
        rows = [run(stack([sample], padding, length)) for sample in samples]
        return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}


class _Unpaddable(Exception):
    """Why samples of different lengths cannot share a batch, in words for the user."""


def _whole(array: np.ndarray, name: str) -> tuple[int, ...]:
    return candidates(Tensor(name, str(array.dtype), None))


def _varying_axes(shapes: set[tuple[int, ...]]) -> list[int]:
    if len({len(shape) for shape in shapes}) > 1:
        return []
    return [axis for axis, sizes in enumerate(zip(*shapes, strict=True)) if len(set(sizes)) > 1]


def _length_axes(alone: Sequence[Mapping[str, Any]], lengths: Sequence[int]) -> dict[str, int]:
    """The axis (of a sample) along which each output is as long as its sample."""
    found: dict[str, int] = {}
    short, long = 0, len(lengths) - 1
    for name in alone[0]:
        a, b = alone[short][name].shape, alone[long][name].shape
        if not a or a[0] != 1 or len(a) != len(b):
            raise _Unpaddable(f"output {name} has no batch axis")
        differing = [axis for axis in range(1, len(a)) if a[axis] != b[axis]]
        if not differing:
            continue
        if len(differing) > 1:
            raise _Unpaddable(f"output {name} grows with the sample in {len(differing)} axes")
        axis = differing[0]
        if any(outputs[name].shape[axis] != length for outputs, length in zip(alone, lengths, strict=True)):
            raise _Unpaddable(f"output {name} grows with the sample, but is not as long as it")
        found[name] = axis - 1
    return found


def _difference(
    together: Mapping[str, Any],
    alone: Sequence[Mapping[str, Any]],
    lengths: Sequence[int],
    outputs: Mapping[str, int],
    tolerance: float,
) -> str:
    """What padding changed, in words; empty where it changed nothing."""
    import numpy as np

    for name, batch in together.items():
        if batch.shape[0] != len(alone):
            return f"output {name} has no batch axis"
        for row, own, length in zip(batch, alone, lengths, strict=True):
            expected = own[name][0]
            if name in outputs:
                row = row[(slice(None),) * outputs[name] + (slice(length),)]
            if row.shape != expected.shape:
                return f"output {name} has shape {list(row.shape)} padded and {list(expected.shape)} alone"
            if expected.dtype.kind != "f":
                if not np.array_equal(row, expected):
                    return f"output {name} of a padded sample differs from that of the sample alone"
                continue
            scale = float(np.abs(expected).max(initial=0.0))
            worst = float(np.abs(row.astype(np.float64) - expected).max(initial=0.0))
            if not worst <= tolerance * scale + 1e-6:
                return f"padding changes output {name} by {worst:.2g} where its largest magnitude is {scale:.2g}"
    return ""
