"""Fits what a source delivers to the model's signature: names, types, ranks, the batch axis, and finite values."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from hasten.data.cast import cast
from hasten.errors import InvalidInput
from hasten.model import Dim, Signature, Tensor

BatchAxis = Literal["auto", "yes", "no"]
LABEL_KEYS = ("label", "labels")
_NO_NAMES = frozenset({"none", "unk", "unknown", "dynamic", "any"})


@dataclass(frozen=True)
class Row:
    """One sample as delivered. `where` is how a message names it, such as "line 7"."""

    inputs: Mapping[str, Any]
    label: Any
    where: str


def has_batch_axis(tensor: Tensor) -> bool:
    """Whether the model's own shape says that the first axis is the batch: it is dynamic, or 1."""
    return bool(tensor.shape) and (not isinstance(tensor.shape[0], int) or tensor.shape[0] == 1)  # type: ignore[index]


def expected(tensor: Tensor) -> str:
    """How a message writes an input: `ids int64[batch, seq]`."""
    if tensor.shape is None:
        return f"{tensor.name} {tensor.dtype} of any shape"
    dims = ", ".join("?" if dim is None else str(dim) for dim in tensor.shape)
    return f"{tensor.name} {tensor.dtype}[{dims}]"


def expects(signature: Signature) -> str:
    return ", ".join(expected(tensor) for tensor in signature.inputs)


class Fitter:
    """Checks rows against `signature`; `notes` gathers what was decided, for `Samples.origin`.

    `columns` are the names of an input's features, where they are known; `missing` says that NaN is a value that the
    model takes, for a number that is not there.
    """

    def __init__(
        self,
        signature: Signature,
        batch_axis: BatchAxis = "auto",
        columns: Mapping[str, Sequence[str]] | None = None,
        missing: bool = False,
    ) -> None:
        self.signature, self.batch_axis = signature, batch_axis
        self.columns, self.missing = dict(columns or {}), missing
        self.notes: dict[str, None] = {}

    def note(self, text: str) -> None:
        self.notes.setdefault(text)

    def names(self, found: Sequence[str], where: str) -> None:
        """Check that every input is there. What the model does not take is left out, and noted."""
        wanted = [tensor.name for tensor in self.signature.inputs]
        missing = [name for name in wanted if name not in found]
        extra = [name for name in found if name not in wanted]
        if missing:
            close = difflib.get_close_matches(missing[0], extra, 1)
            hint = f"rename {close[0]!r} to {missing[0]!r}" if close else f"name the arrays {', '.join(wanted)}"
            raise InvalidInput(
                f"{where} has no {_list(missing)}; found {_list(found) or 'nothing'}; "
                f"the model expects {expects(self.signature)}",
                hint,
            )
        if extra:
            self.note(f"ignored {_list(extra)}, which the model does not take")

    def fit(self, row: Row) -> Iterator[tuple[dict[str, np.ndarray], Any]]:
        """The samples in `row`, without batch axis: one, or several where it carries a batch axis longer than 1."""
        self.names(list(row.inputs), row.where)
        whole: dict[str, np.ndarray] = {}
        batched: dict[str, int] = {}
        for tensor in self.signature.inputs:
            what = f"{row.where}: input {tensor.name!r}"
            array = cast(row.inputs[tensor.name], tensor.dtype, what, missing=self.missing)
            source = np.asarray(row.inputs[tensor.name]).dtype
            if source == np.uint8 and tensor.dtype.startswith(("float", "bfloat")):
                self.note(f"{tensor.name}: uint8 values kept as 0 to 255, not scaled")
            if self._carries_batch(tensor, array, what):
                batched[tensor.name] = len(array)
            self._check_dims(tensor, array.shape[tensor.name in batched :], what)
            whole[tensor.name] = array
        if not batched:
            self._check_named(whole, row.where)
            yield whole, row.label
            return
        sizes = set(batched.values())
        if len(sizes) > 1:
            raise InvalidInput(
                f"{row.where}: the batch axes differ: {', '.join(f'{name} has {n}' for name, n in batched.items())}",
                "give every input the same number of rows",
            )
        (size,) = sizes
        self.note("samples carried a batch axis, which was removed")
        if size == 0:
            raise InvalidInput(f"{row.where}: the batch axis is empty", "give at least one row")
        if size > 1 and row.label is not None and (not np.ndim(row.label) or len(row.label) != size):
            raise InvalidInput(
                f"{row.where} carries {size} samples in its batch axis, and its label is not a list of {size}",
                "give one label a sample",
            )
        for at in range(size):
            sample = {name: (array[at] if name in batched else array) for name, array in whole.items()}
            self._check_named(sample, row.where)
            label = row.label[at] if size > 1 and row.label is not None else row.label
            yield {name: np.asarray(value) for name, value in sample.items()}, label

    def _carries_batch(self, tensor: Tensor, array: np.ndarray, what: str) -> bool:
        if tensor.shape is None:
            return self.batch_axis == "yes"
        rank = len(tensor.shape)
        if array.ndim == rank and rank:
            return self.batch_axis == "yes" or (self.batch_axis == "auto" and has_batch_axis(tensor))
        if array.ndim == rank == 0:
            return False
        unbatched = self._never_batched(tensor)
        if array.ndim == rank - 1 and self.batch_axis != "yes" and not unbatched:
            return False
        ranks = {
            "auto": f"{rank} axes" if unbatched else f"{max(rank - 1, 0)} axes, or {rank} with a batch axis",
            "yes": f"{rank} axes",
            "no": f"{rank} axes",
        }
        raise InvalidInput(
            f"{what} has {array.ndim} axes (shape {_shape(array.shape)}); the model expects {expected(tensor)}, "
            f"so a sample has {ranks[self.batch_axis]}",
            "reshape the samples, or say --batch-axis yes|no if hasten guessed wrong",
        )

    def _never_batched(self, tensor: Tensor) -> bool:
        """Whether the first axis is one of the model's own: its size is fixed, and that of other inputs is not."""
        first = tensor.shape[0] if tensor.shape else None
        others = [other.shape[0] for other in self.signature.inputs if other.shape and other.name != tensor.name]
        return isinstance(first, int) and first > 1 and any(not isinstance(dim, int) for dim in others)

    def _check_dims(self, tensor: Tensor, shape: tuple[int, ...], what: str) -> None:
        if tensor.shape is None:
            return
        dims: tuple[Dim, ...] = tensor.shape[len(tensor.shape) - len(shape) :]
        if any(isinstance(dim, int) and dim != size for dim, size in zip(dims, shape, strict=True)):
            hint = "reshape or resize the samples"
            if sorted(map(str, dims)) == sorted(map(str, shape)):
                hint = "the sizes are right and their order is not: transpose the samples"
            raise InvalidInput(
                f"{what} has the shape {_shape(shape)} (without batch axis); the model expects {expected(tensor)}", hint
            )

    def _check_named(self, sample: Mapping[str, np.ndarray], where: str) -> None:
        """A named axis is one size throughout a sample: `attention_mask` is as long as `input_ids`."""
        sizes: dict[str, tuple[str, int]] = {}
        for tensor in self.signature.inputs:
            if tensor.shape is None:
                continue
            shape = sample[tensor.name].shape
            for dim, size in zip(tensor.shape[len(tensor.shape) - len(shape) :], shape, strict=True):
                if not isinstance(dim, str) or not dim.isidentifier() or dim.lower() in _NO_NAMES:
                    continue
                other, first = sizes.setdefault(dim, (tensor.name, size))
                if size != first:
                    raise InvalidInput(
                        f"{where}: the axis {dim!r} is {first} in {other!r} and {size} in {tensor.name!r}",
                        f"the model expects {expects(self.signature)}: give both the same size",
                    )


def _list(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:8])
    return shown + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _shape(shape: Sequence[int]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"
