"""hasten's own form of samples: one flat file per input, read by memory map, beside a small manifest.

A folder holds `samples.json` and, for column `k` (the inputs in order, then the labels), `k.bin` with every sample's
elements end to end and, where samples differ in shape, `k.shapes.npy`. Text is UTF-8, with `k.lengths.npy`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hasten.data.cast import STORED_AS, numpy_dtype
from hasten.data.writer import SCHEMA, SampleWriter
from hasten.errors import Failed, InvalidInput
from hasten.model import Tensor
from hasten.workload import Kind, Samples


class SampleSet:
    """Samples on disk: `samples[i]` is a dict of arrays without batch axis."""

    def __init__(self, handle: Samples, columns: Sequence[_Column], labels: _Column | None) -> None:
        self.handle, self._columns, self._labels = handle, columns, labels

    @classmethod
    def open(cls, path: str | Path) -> SampleSet:
        """Open the folder at `path`. Raises `Failed` where it is damaged."""
        path = Path(path)
        try:
            manifest = json.loads((path / "samples.json").read_text())
            if manifest.get("schema") != SCHEMA:
                raise ValueError(f"schema {manifest.get('schema')!r} instead of {SCHEMA!r}")
            inputs = tuple(Tensor.from_json(item) for item in manifest["inputs"])
            handle = Samples(path, manifest["sha256"], manifest["count"], inputs, manifest["kind"],
                             manifest["labels"] is not None, manifest["origin"])  # fmt: skip
            columns = [_Column(path, number, tensor, handle.count) for number, tensor in enumerate(inputs)]
            labels = manifest["labels"]
            found = None if labels is None else _Column(path, len(inputs), Tensor.from_json(labels), handle.count)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Failed(f"the samples at {path} cannot be read: {error}", "ingest the data again") from None
        return cls(handle, columns, found)

    @staticmethod
    def write(
        path: str | Path,
        samples: Sequence[Mapping[str, Any]],
        labels: Sequence[Any] | np.ndarray | None = None,
        *,
        kind: Kind = "data",
        origin: str = "",
    ) -> Samples:
        """Write arrays (one dict a sample, no batch axis) to the folder `path`, replacing what is there."""
        if not len(samples):
            raise InvalidInput("there are no samples", "give at least one")
        if labels is not None and len(labels) != len(samples):
            raise InvalidInput(f"there are {len(samples)} samples and {len(labels)} labels", "give one label a sample")
        with SampleWriter(Path(path).parent) as writer:
            for number, sample in enumerate(samples):
                writer.add(
                    {name: np.asarray(value) for name, value in sample.items()},
                    None if labels is None else labels[number],
                )
            return writer.finish(kind, origin, Path(path))

    def __len__(self) -> int:
        return self.handle.count

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(index)
        return {column.tensor.name: column[index] for column in self._columns}

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        return (self[index] for index in range(len(self)))

    @property
    def labels(self) -> np.ndarray | None:
        """Labels in order: one array, of dtype object where they differ in shape or are text."""
        return None if self._labels is None else self._labels.stacked()

    def lengths(self, axis: int) -> list[int] | None:
        """Each sample's size along `axis` in the first input that varies there; None where none does."""
        for column in self._columns:
            if column.shapes is not None and column.shapes.shape[1] > axis:
                sizes: list[int] = column.shapes[:, axis].tolist()
                if len(set(sizes)) > 1:
                    return sizes
        return None

    def duplicates(self) -> float:
        """The share of samples whose inputs repeat those of an earlier sample, byte for byte."""
        seen: set[bytes] = set()
        for index in range(len(self)):
            digest = hashlib.blake2b(digest_size=16)
            for column in self._columns:
                digest.update(column.key(index))
            seen.add(digest.digest())
        return 1.0 - len(seen) / len(self)


class _Column:
    """One input, or the labels."""

    def __init__(self, folder: Path, number: int, tensor: Tensor, count: int) -> None:
        self.tensor, self.count = tensor, count
        self.text = tensor.dtype == "string"
        shapes = folder / f"{number}.shapes.npy"
        self.shapes = np.load(shapes, allow_pickle=False) if shapes.exists() else None
        self.lengths = np.load(folder / f"{number}.lengths.npy", allow_pickle=False) if self.text else None
        data = folder / f"{number}.bin"
        stored = np.dtype(np.uint8) if self.text else np.dtype(STORED_AS.get(tensor.dtype, tensor.dtype))
        self.flat = (
            np.memmap(data, stored, mode="r") if data.stat().st_size else np.empty(0, stored)
        )  # an empty file cannot be mapped
        if self.shapes is None:
            shape = tuple(int(size) for size in tensor.shape or ())  # type: ignore[arg-type]
            self.shape: tuple[int, ...] | None = shape
            sizes = np.full(count, int(np.prod(shape, dtype=np.int64)), np.int64)
        else:
            self.shape = None
            sizes = np.prod(self.shapes, axis=1, dtype=np.int64)
        self.starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        if self.lengths is not None:
            self.text_starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.lengths)])
        expected = int(self.text_starts[-1] if self.lengths is not None else self.starts[-1])
        if len(self.flat) != expected:
            raise ValueError(f"{data.name} has {len(self.flat)} elements instead of {expected}")

    def _shape(self, index: int) -> tuple[int, ...]:
        return self.shape if self.shape is not None else tuple(self.shapes[index].tolist())  # type: ignore[index]

    def __getitem__(self, index: int) -> np.ndarray:
        start, stop = int(self.starts[index]), int(self.starts[index + 1])
        if self.text:
            bounds = self.text_starts[start : stop + 1].tolist()
            items = np.empty(stop - start, object)
            for at in range(stop - start):
                items[at] = bytes(self.flat[bounds[at] : bounds[at + 1]]).decode("utf-8", "surrogatepass")
            return items.reshape(self._shape(index))
        part = np.array(self.flat[start:stop])  # a copy: runtimes and callers may want to write
        if self.tensor.dtype in STORED_AS:
            part = part.view(numpy_dtype(self.tensor.dtype))
        return part.reshape(self._shape(index))

    def key(self, index: int) -> bytes:
        start, stop = int(self.starts[index]), int(self.starts[index + 1])
        shape = repr(self._shape(index)).encode()
        if self.lengths is not None:
            inner = self.lengths[start:stop].tobytes()
            start, stop = int(self.text_starts[start]), int(self.text_starts[stop])
            return shape + inner + self.flat[start:stop].tobytes()
        return shape + self.flat[start:stop].tobytes()

    def stacked(self) -> np.ndarray:
        if self.shape is not None and not self.text:
            whole = np.array(self.flat).reshape(self.count, *self.shape)
            return whole.view(numpy_dtype(self.tensor.dtype)) if self.tensor.dtype in STORED_AS else whole
        items = np.empty(self.count, object)
        for index in range(self.count):
            one = self[index]
            items[index] = one.item() if one.ndim == 0 else one
        return items
