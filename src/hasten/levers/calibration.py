"""The calibration samples as a model wants them: whole batches, one sample each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hasten.errors import InvalidInput
from hasten.levers.base import Case
from hasten.model import Signature
from hasten.runner import packing
from hasten.workload import Padding

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Batches:
    """Sample after sample, each with its batch axis; it can be read again and again."""

    samples: Any
    indices: tuple[int, ...]
    signature: Signature
    padding: Padding | None = None

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, position: int) -> dict[str, np.ndarray]:
        return as_batch(self.samples[self.indices[position]], self.signature, self.padding)

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        return (self[i] for i in range(len(self)))


def calibration_batches(case: Case, signature: Signature, count: int) -> Batches:
    """The first `count` calibration samples."""
    if not case.split.calibration:
        raise InvalidInput(
            "there are too few samples to calibrate with", "give at least 3 samples; 100 or more calibrate well"
        )
    from hasten.data import SampleSet

    samples = SampleSet.open(case.workload.samples.path)
    return Batches(samples, case.split.calibration[:count], signature, case.workload.padding)


def as_batch(
    sample: Mapping[str, np.ndarray], signature: Signature, padding: Padding | None, rows: int = 1
) -> dict[str, np.ndarray]:
    """One sample as a batch of `rows` copies of it, or as a packed batch of its own."""
    if padding is not None and packing.is_packed(signature):
        return packing.alone(sample, signature, padding)
    return with_batch_axis(sample, signature, rows)


def with_batch_axis(sample: Mapping[str, np.ndarray], signature: Signature, rows: int = 1) -> dict[str, np.ndarray]:
    """One sample as a batch. Where the model's first axis is fixed at N, the sample is repeated N times."""
    import numpy as np

    batch = {}
    for tensor in signature.inputs:
        array = np.asarray(sample[tensor.name])
        if tensor.shape is None or len(tensor.shape) == array.ndim + 1:
            first = tensor.shape[0] if tensor.shape else None
            array = np.repeat(array[np.newaxis], first if isinstance(first, int) else rows, axis=0)
        batch[tensor.name] = np.ascontiguousarray(array)
    return batch
