"""Token packing: sequences are laid end to end in rows of one length, so that no padding is computed.

The model was rewritten for it (see the lever `pack`): it is told where each sequence begins by `packed_segments`, and
its attention keeps to one segment. A row's sequences are found by best-fit decreasing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hasten.errors import InvalidInput
from hasten.model import Signature

if TYPE_CHECKING:
    import numpy as np

    from hasten.runner.assembly import Buffers
    from hasten.workload import Padding

    Sample = Mapping[str, np.ndarray]

SEGMENTS, POSITIONS, MEAN, FIRST = "packed_segments", "packed_positions", "packed_mean", "packed_first"
"""What a packed model takes besides its own inputs, all int64 but the last:

segments [rows, tokens]: the number of the sequence that a token belongs to, from 1; 0 fills up.
positions [rows, tokens]: the token's place in its own sequence.
first [rows x segments]: where each sequence begins among all tokens.
mean [rows, segments, tokens]: float32, one over its length for each token of a sequence, else 0.
"""
SPECIAL = (SEGMENTS, POSITIONS, MEAN, FIRST)


@dataclass(frozen=True)
class Packed:
    """A batch of `size` rows of `length` tokens, each the samples' (index, start) in it. Rows may be fewer than `size`;

    a row holds at most `segments` sequences.
    """

    rows: tuple[tuple[tuple[int, int], ...], ...]
    length: int
    size: int
    segments: int

    @property
    def indices(self) -> tuple[int, ...]:
        return tuple(index for row in self.rows for index, _ in row)


def pack(lengths: Sequence[int], row_tokens: int, rows: int, segments: int) -> list[Packed]:
    """Every sample in a row of `row_tokens`, `rows` of them to a batch; a longer one has a row of its own.

    The last batch has half as many rows, or a quarter, where that holds what is left.

    >>> [[row for row in batch.rows] for batch in pack([3, 8, 5, 2], 10, 2, 4)]
    [[((1, 0), (3, 8)), ((2, 0), (0, 5))]]
    """
    free: list[list[int]] = [[] for _ in range(row_tokens + 1)]  # rows by the room that is left in them
    filled: list[list[tuple[int, int]]] = []
    room: list[int] = []
    found: list[Packed] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        need = max(1, lengths[index])
        if need > row_tokens:
            found.append(Packed((((index, 0),),), need, 1, segments))
            continue
        row = next((free[left].pop() for left in range(need, row_tokens + 1) if free[left]), None)
        if row is None:
            row = len(filled)
            filled.append([])
            room.append(row_tokens)
        filled[row].append((index, row_tokens - room[row]))
        room[row] -= need
        if room[row] and len(filled[row]) < segments:
            free[room[row]].append(row)
    for at in range(0, len(filled), rows):
        part = tuple(tuple(row) for row in filled[at : at + rows])
        found.append(Packed(part, row_tokens, _last_size(len(part), rows), segments))
    return found


def _last_size(count: int, rows: int) -> int:
    """The least of all, half and a quarter of `rows` that holds `count`."""
    size = rows
    for divisor in (2, 4):
        if -(-rows // divisor) >= count:
            size = -(-rows // divisor)
    return size


def is_packed(signature: Signature) -> bool:
    return any(tensor.name == SEGMENTS for tensor in signature.inputs)


def assemble_packed(
    samples: Sequence[Sample], batch: Packed, signature: Signature, padding: Padding, buffers: Buffers | None = None
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The packed model's inputs for `batch`, and the memory that they took from `buffers`."""
    import numpy as np

    inputs: dict[str, np.ndarray] = {}
    taken: dict[str, np.ndarray] = {}
    places = [(row, start, samples[index]) for row, line in enumerate(batch.rows) for index, start in line]
    key = next(iter(padding.values))
    shape = (batch.size, batch.length)

    def empty(name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        if buffers is None:
            return np.empty(shape, dtype)
        array, taken[name] = buffers.take(name, shape, np.dtype(dtype))
        return array

    for tensor in signature.inputs:
        name = tensor.name
        if name in (SEGMENTS, POSITIONS):
            array = empty(name, shape, np.int64)
            array.fill(0)
            number: dict[int, int] = {}
            for row, start, sample in places:
                length = sample[key].shape[padding.axis]
                number[row] = number.get(row, 0) + 1
                array[row, start : start + length] = number[row] if name == SEGMENTS else np.arange(length)
        elif name == MEAN:
            array = empty(name, (batch.size, batch.segments, batch.length), np.float32)
            array.fill(0)
            number = {}
            for row, start, sample in places:
                length = sample[key].shape[padding.axis]
                at = number.get(row, 0)
                number[row] = at + 1
                array[row, at, start : start + length] = 1.0 / length
        elif name == FIRST:
            array = empty(name, (batch.size * batch.segments,), np.int64)
            array.fill(0)
            number = {}
            for row, start, _ in places:
                at = number.get(row, 0)
                number[row] = at + 1
                array[row * batch.segments + at] = row * batch.length + start
        elif name in padding.values:
            first = places[0][2][name]
            array = empty(name, (*shape, *first.shape[1:]), np.dtype(tensor.dtype))
            array.fill(padding.values[name])
            for row, start, sample in places:
                own = sample[name]
                array[row, start : start + len(own)] = own
        else:
            raise InvalidInput(f"input {name} cannot be packed: its length does not vary", "leave the step pack out")
        inputs[name] = array
    return inputs, taken


def split_packed(
    outputs: Mapping[str, np.ndarray], batch: Packed, lengths: Sequence[int], padding: Padding
) -> list[Any]:
    """The outputs of each sample, in the order of `batch.indices`: its tokens, or the row of its segment."""
    found: list[dict[str, np.ndarray]] = []
    by_token = padding.outputs or {}
    for row, line in enumerate(batch.rows):
        for at, (index, start) in enumerate(line):
            own = {}
            for name, array in outputs.items():
                if name in by_token:
                    own[name] = array[row, start : start + lengths[index]]
                else:
                    own[name] = array[row * batch.segments + at]
            found.append(own)
    return found


def alone(sample: Sample, signature: Signature, padding: Padding) -> dict[str, np.ndarray]:
    """One sample as a packed batch of its own, without anything to fill up."""
    length = sample[next(iter(padding.values))].shape[padding.axis]
    return assemble_packed([sample], Packed((((0, 0),),), length, 1, 1), signature, padding)[0]
