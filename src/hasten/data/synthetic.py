"""Makes samples from a signature, for when the user has none: they say how fast a model is, not how good."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from hasten.data.cast import numpy_dtype
from hasten.data.fit import Row, has_batch_axis
from hasten.errors import InvalidInput
from hasten.model import Dim, Signature, Tensor

LEAST, MOST, BYTES = 32, 512, 32e6
"""As many samples as fit into the bytes, within these bounds: a few hundred can tell whether quality was kept."""
_LENGTH, _SIDE, _PAST, _IDS = 64, 224, 16, 100


def rows(signature: Signature, seed: int) -> Iterator[Row]:
    """Made-up samples: standard normal floats, small positive integers, masks of ones, images 224 pixels a side."""
    generator = np.random.default_rng(seed)
    for at in range(count(signature)):
        yield Row(_sample(signature, generator), None, f"synthetic sample {at}")


def count(signature: Signature) -> int:
    """How many samples are made."""
    one = _sample(signature, np.random.default_rng(0))
    return max(LEAST, min(MOST, int(BYTES / max(1, sum(array.nbytes for array in one.values())))))


def _sample(signature: Signature, generator: np.random.Generator) -> dict[str, np.ndarray]:
    return {tensor.name: _array(tensor, generator) for tensor in signature.inputs}


def sizes(signature: Signature) -> str:
    """What the dynamic axes were given, for `Samples.origin`."""
    found = {}
    for tensor in signature.inputs:
        shape = tensor.shape or ()
        for at, dim in enumerate(shape):
            if at >= has_batch_axis(tensor) and not isinstance(dim, int):
                found[str(dim) if dim is not None else f"{tensor.name}[{at}]"] = _size(tensor, at, dim)
    return ", ".join(f"{name}={size}" for name, size in found.items())


def _array(tensor: Tensor, generator: np.random.Generator) -> np.ndarray:
    if tensor.shape is None:
        raise InvalidInput(
            f"the model does not say how many axes its input {tensor.name!r} has, so no sample can be made up",
            "give samples", "--data FILE",
        )  # fmt: skip
    skip = has_batch_axis(tensor)
    shape = [_size(tensor, at, dim) for at, dim in enumerate(tensor.shape)][skip:]
    if np.prod(shape, dtype=np.float64) > 1 << 28:
        raise InvalidInput(f"a made-up sample of {tensor.name!r} would have the shape {shape}", "give samples",
                           "--data FILE")  # fmt: skip
    name, dtype = tensor.name.lower(), tensor.dtype
    if dtype == "string":
        return np.full(shape, "a sample of text", object)
    if dtype == "bool":
        return np.ones(shape, bool)
    kind = numpy_dtype(dtype)
    if kind.kind in "iu":
        if "mask" in name:
            return np.ones(shape, kind)
        if "type" in name or "segment" in name:
            return np.zeros(shape, kind)
        if "position" in name and shape:
            return np.broadcast_to(np.arange(shape[-1]), shape).astype(kind)
        if name in ("sr", "sample_rate", "sampling_rate"):
            return np.full(shape, 16000, kind)
        if not shape:
            return np.asarray(1, kind)
        high = 256 if dtype == "uint8" else _IDS
        return generator.integers(0, high, shape).astype(kind)
    if "mask" in name:
        return np.ones(shape, kind)
    return generator.standard_normal(shape).astype(kind)


def _size(tensor: Tensor, at: int, dim: Dim) -> int:
    if isinstance(dim, int):
        return dim
    if dim is not None and "+" in dim:
        parts = [part.strip() for part in dim.split("+")]
        return sum(int(part) if part.isdigit() else _size(tensor, at, part) for part in parts)
    name = (dim or "").lower()
    if re.search("batch", name):
        return 1
    if re.search("past|cache", name):
        return _PAST
    if tensor.shape is not None and len(tensor.shape) == 4 and not re.search("seq|len|tok|time", name):
        channels_last = tensor.shape[3] in (1, 3, 4) and tensor.shape[1] not in (1, 3, 4)
        if at == (3 if channels_last else 1):
            return 3
        return _SIDE
    return _LENGTH
