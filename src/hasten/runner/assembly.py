"""Builds batches from samples in reused buffers, and cuts outputs back into samples."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hasten.errors import InvalidInput
from hasten.model import Signature, Tensor
from hasten.runner.packing import SPECIAL
from hasten.runner.plan import Batch
from hasten.workload import Padding

if TYPE_CHECKING:
    import numpy as np

    Sample = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Layout:
    """How samples become the model's inputs.

    `inputs` are the inputs that the variant still has; `shared` those without batch axis, the same for a whole batch;
    `rows` is the batch size of a model that has just one; `batched` is False for a model without batch axis, which
    runs one sample at a time; `whole` names outputs without batch axis, and `axes` says where those have it that do
    not have it first.
    """

    inputs: tuple[Tensor, ...]
    shared: frozenset[str]
    rows: int | None
    batched: bool
    whole: frozenset[str]
    axes: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, source: Signature, variant: Signature, sample: Sample) -> Layout:
        """Decided from the signatures and one sample: an input has a batch axis where the sample lacks one axis."""
        ours = {tensor.name: tensor for tensor in source.inputs}
        shared, first_dims = set(), []
        for tensor in variant.inputs:
            if tensor.name in SPECIAL:
                continue  # the runner makes these itself
            if tensor.name not in sample:
                raise InvalidInput(
                    f"the samples have no input {tensor.name}", f"the inputs are: {', '.join(ours) or 'none'}"
                )
            shape = tensor.shape if tensor.shape is not None else ours.get(tensor.name, tensor).shape
            rank = sample[tensor.name].ndim
            if shape is not None and len(shape) == rank + 1:
                first_dims.append(shape[0])
            elif shape is None or len(shape) == rank:
                shared.add(tensor.name)
            else:
                raise InvalidInput(
                    f"input {tensor.name} has {rank} axes in the samples, and {len(shape)} in the model",
                    "give samples with or without the batch axis",
                )
        fixed = {dim for dim in first_dims if isinstance(dim, int)}
        if len(fixed) > 1:
            raise InvalidInput(f"the inputs' batch axes differ: {', '.join(map(str, sorted(fixed)))}")
        symbols = {dim for dim in first_dims if isinstance(dim, str)}
        rows = fixed.pop() if fixed else None
        axes = _axes(source, sample) if first_dims else {}
        whole = {
            tensor.name
            for tensor in variant.outputs
            if first_dims and tensor.name not in axes and _is_whole(tensor, rows, symbols)
        }
        return cls(variant.inputs, frozenset(shared), rows, bool(first_dims), frozenset(whole), axes)


def _axes(source: Signature, sample: Sample) -> dict[str, int]:
    """The batch axis of each output that has it elsewhere than first, as the names of the source's axes tell."""
    batched = [t.shape for t in source.inputs if t.shape and t.name in sample and len(t.shape) > sample[t.name].ndim]
    symbols = {shape[0] for shape in batched if isinstance(shape[0], str)}
    found = {}
    for tensor in source.outputs:
        at = [axis for axis, dim in enumerate(tensor.shape or ()) if isinstance(dim, str) and dim in symbols]
        if len(at) == 1 and at[0]:
            found[tensor.name] = at[0]
    return found


def _is_whole(output: Tensor, rows: int | None, symbols: set[str]) -> bool:
    """Whether an output is known to have no batch axis: a scalar, or a count of its own beside a fixed batch."""
    if output.shape is None:
        return False
    if not output.shape:
        return True
    first = output.shape[0]
    if rows is not None:
        return first != rows if isinstance(first, int) else first not in symbols
    return False


class Buffers:
    """Memory for inputs: a batch takes it and gives it back when it is done; it grows to the largest batch.

    Fresh memory for each batch costs a page fault for every 4 KiB, which is more than the copy itself.
    """

    def __init__(self) -> None:
        self._free: dict[str, list[np.ndarray]] = defaultdict(list)

    def take(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[np.ndarray, np.ndarray]:
        """An array of `shape`, not cleared, and the flat memory under it, to give back."""
        import numpy as np

        count = math.prod(shape)
        try:
            flat = self._free[name].pop()  # list.pop and append are atomic
        except IndexError:
            flat = np.empty(count, dtype)
        if flat.size < count or flat.dtype != dtype:
            flat = np.empty(count, dtype)
        return flat[:count].reshape(shape), flat

    def give(self, memory: Mapping[str, np.ndarray]) -> None:
        for name, flat in memory.items():
            self._free[name].append(flat)


def assemble(
    samples: Sequence[Sample], batch: Batch, layout: Layout, padding: Padding | None, buffers: Buffers
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The model's inputs for `batch`, and the memory that they took from `buffers`."""
    import numpy as np

    inputs: dict[str, np.ndarray] = {}
    taken: dict[str, np.ndarray] = {}
    members = batch.indices
    filled = (*members, *(members[-1],) * (batch.size - len(members)))
    for tensor in layout.inputs:
        name = tensor.name
        first = samples[members[0]][name]
        dtype = _dtype(tensor, first)
        if name in layout.shared or not layout.batched:
            inputs[name] = np.asarray(first, dtype)
            continue
        pad = padding.values.get(name) if padding is not None and batch.length is not None else None
        if batch.size == 1 and first.dtype == dtype and (pad is None or _fits(first, padding, batch)):
            inputs[name] = first[None]
            continue
        shape = list(first.shape)
        if pad is not None and padding is not None and batch.length is not None:
            shape[padding.axis] = batch.length
        rows, taken[name] = buffers.take(name, (batch.size, *shape), dtype)
        if pad is None:
            for row, index in enumerate(filled):
                rows[row] = samples[index][name]
        elif padding is not None and batch.length is not None:
            _pad(rows, [samples[index][name] for index in filled], padding.axis, pad, batch.length)
        inputs[name] = rows
    return inputs, taken


def _fits(first: np.ndarray, padding: Padding | None, batch: Batch) -> bool:
    return padding is not None and first.shape[padding.axis] == batch.length


def _pad(rows: np.ndarray, arrays: Sequence[np.ndarray], axis: int, value: float, length: int) -> None:
    if axis == 0:
        for row, array in enumerate(arrays):
            own = len(array)
            rows[row, :own] = array
            if own < length:
                rows[row, own:] = value
        return
    before = (slice(None),) * axis
    for row, array in zip(rows, arrays, strict=True):
        own = array.shape[axis]
        row[(*before, slice(own))] = array
        row[(*before, slice(own, None))] = value


def _dtype(tensor: Tensor, sample: np.ndarray) -> np.dtype[Any]:
    """The type that the variant wants, which a lever may have changed; text stays objects, as ONNX Runtime has it."""
    import numpy as np

    if tensor.dtype == "string" or sample.dtype.kind in "OUS":
        return np.dtype(object)
    return sample.dtype if tensor.dtype == "bfloat16" else np.dtype(tensor.dtype)


def split(
    outputs: Mapping[str, np.ndarray],
    batch: Batch,
    layout: Layout,
    cuts: Mapping[str, tuple[int, Sequence[int]]],
) -> list[dict[str, np.ndarray]]:
    """The outputs of each sample of `batch`, in its order.

    `cuts` maps an output to its variable axis and to the samples' own lengths.
    """
    import numpy as np

    if not layout.batched:
        return [dict(outputs)]
    outputs = {
        name: np.moveaxis(array, layout.axes[name], 0) if name in layout.axes else array
        for name, array in outputs.items()
    }
    if batch.size == 1 and not cuts:
        whole = layout.whole
        return [
            {
                name: array[0] if name not in whole and array.ndim and array.shape[0] == 1 else array
                for name, array in outputs.items()
            }
        ]
    found: list[dict[str, np.ndarray]] = [{} for _ in batch.indices]
    for name, array in outputs.items():
        if name in layout.whole or not array.ndim or array.shape[0] % batch.size:
            if batch.size > 1:
                raise InvalidInput(
                    f"output {name} of a batch of {batch.size} has shape {list(array.shape)}: it cannot be told apart",
                    "run this model with batch = 1",
                )
            for own in found:
                own[name] = array
            continue
        if array.shape[0] != batch.size:  # rows of all samples one after the other
            array = array.reshape(batch.size, -1, *array.shape[1:])
        if name not in cuts:
            for own, row in zip(found, array, strict=False):
                own[name] = row
            continue
        axis, lengths = cuts[name]
        before = (slice(None),) * axis
        for own, row, length in zip(found, array, lengths, strict=False):
            own[name] = row[(*before, slice(length))]
    return found
