"""Writes samples in hasten's own form (see `data.store`), one at a time."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from hasten.data.cast import STORED_AS
from hasten.errors import Failed, InvalidInput
from hasten.model import Tensor
from hasten.workload import Kind, Samples

SCHEMA = "hasten.samples/1"
_LABEL_COLUMN = "\0labels"


class SampleWriter:
    """Writes samples one at a time, so that no more than one is in memory; `finish` moves them into place."""

    def __init__(self, into: Path, max_bytes: int | None = None) -> None:
        try:
            into.mkdir(parents=True, exist_ok=True)
            self.folder = Path(tempfile.mkdtemp(prefix=".writing-", dir=into))
        except OSError as error:
            raise Failed(f"samples cannot be written to {into}: {error.strerror}", "choose a folder you may write to") \
                from None  # fmt: skip
        self.into, self.max_bytes = into, max_bytes
        self.count = self.bytes = 0
        self._out: list[_Out] = []

    def __enter__(self) -> SampleWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for out in self._out:
            with contextlib.suppress(OSError):  # a full disk was told of before, or is about to be
                out.file.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def add(self, sample: Mapping[str, np.ndarray], label: Any = None) -> None:
        """Add one sample; every one must have the same inputs and dtypes, and a label either always or never."""
        columns = dict(sample)
        if label is not None:
            columns[_LABEL_COLUMN] = _label_array(label, self.count)
        if not self._out:
            self._out = [
                _Out(self.folder, number, name, _dtype_name(array))
                for number, (name, array) in enumerate(columns.items())
            ]
        if {out.name for out in self._out} != set(columns):
            had = _LABEL_COLUMN in {out.name for out in self._out}
            if had != (_LABEL_COLUMN in columns):
                raise InvalidInput(
                    f"sample {self.count} has {'no label' if had else 'a label'}, the ones before it have "
                    f"{'one' if had else 'none'}",
                    "give every sample a label, or none",
                )
            raise InvalidInput(
                f"sample {self.count} has other inputs than the first", "give all samples the same inputs"
            )
        try:
            for out in self._out:
                self.bytes += out.add(columns[out.name], self.count)
        except OSError as error:
            raise Failed(f"samples cannot be written to {self.into}: {error.strerror}", "free some space") from None
        self.count += 1
        if self.max_bytes is not None and self.bytes > self.max_bytes:
            raise InvalidInput(
                f"the first {self.count} samples already take {self.bytes / 1e9:.1f} GB, more than hasten reads "
                f"({self.max_bytes / 1e9:.1f} GB)",
                "use fewer or smaller samples: a few hundred decide most questions",
            )

    def finish(self, kind: Kind, origin: str, path: Path | None = None) -> Samples:
        """Close the set, and move it to `path`, or to its hash's name under the folder that it was opened with."""
        try:
            described = [out.close() for out in self._out]
            labels = described.pop() if self._out and self._out[-1].name == _LABEL_COLUMN else None
            manifest: dict[str, Any] = {
                "schema": SCHEMA,
                "count": self.count,
                "kind": kind,
                "inputs": described,
                "labels": labels,
            }
            digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode())
            for file in sorted(self.folder.iterdir()):
                with file.open("rb") as opened:
                    digest.update(f"{file.name} {hashlib.file_digest(opened, 'sha256').hexdigest()}\n".encode())
            manifest |= {"sha256": digest.hexdigest(), "origin": origin}
            (self.folder / "samples.json").write_text(json.dumps(manifest, indent=1) + "\n")
            final = path or self.into / digest.hexdigest()
            if path is not None and final.exists():
                shutil.rmtree(final)
            self.folder.chmod(0o755)
            try:
                os.rename(self.folder, final)
            except OSError:
                if not (final / "samples.json").exists():  # else the same samples were written before
                    raise
                os.replace(self.folder / "samples.json", final / "samples.json")
        except OSError as error:
            raise Failed(f"samples cannot be written to {self.into}: {error.strerror}", "free some space") from None
        inputs = tuple(Tensor.from_json(item) for item in described)
        return Samples(final, digest.hexdigest(), self.count, inputs, kind, labels is not None, origin)


class _Out:
    """The file of one column while it is written."""

    def __init__(self, folder: Path, number: int, name: str, dtype: str) -> None:
        self.folder, self.number, self.name, self.dtype = folder, number, name, dtype
        self.file: BinaryIO = (folder / f"{number}.bin").open("wb")
        self.shapes: list[tuple[int, ...]] = []
        self.lengths: list[int] = []

    def add(self, array: np.ndarray, index: int) -> int:
        name = _dtype_name(array)
        if name != self.dtype:
            if self.name != _LABEL_COLUMN:
                raise InvalidInput(f"sample {index}: {self.name!r} is {name}, the first is {self.dtype}",
                                   "give all samples the same types")  # fmt: skip
            array = self._same_label_type(array, name, index)
        if self.shapes and array.ndim != len(self.shapes[0]):
            what = "the label" if self.name == _LABEL_COLUMN else repr(self.name)
            raise InvalidInput(
                f"sample {index}: {what} has {array.ndim} axes, the first sample's has {len(self.shapes[0])}",
                "give all samples the same number of axes",
            )
        self.shapes.append(array.shape)
        if self.dtype == "string":
            before = self.file.tell()
            for item in array.flat:
                encoded = item.encode("utf-8", "surrogatepass")
                self.lengths.append(len(encoded))
                self.file.write(encoded)
            return self.file.tell() - before
        stored = STORED_AS.get(self.dtype)
        plain = np.ascontiguousarray(array)
        self.file.write((plain.view(stored) if stored else plain).tobytes())
        return array.nbytes

    def _same_label_type(self, array: np.ndarray, name: str, index: int) -> np.ndarray:
        """Whole numbers among others (1, then 2.5) make all labels floating point."""
        if {name, self.dtype} != {"int64", "float64"}:
            raise InvalidInput(
                f"sample {index} has a label of type {name}, the ones before it of type {self.dtype}",
                "give all labels the same type",
            )
        if self.dtype == "int64":
            self.file.close()
            path = self.folder / f"{self.number}.bin"
            before = np.fromfile(path, np.int64)
            self.file = path.open("wb")
            self.file.write(before.astype(np.float64).tobytes())
            self.dtype = "float64"
        return array.astype(np.float64)

    def close(self) -> dict[str, Any]:
        self.file.close()
        ragged = len(set(self.shapes)) > 1
        if ragged:
            np.save(self.folder / f"{self.number}.shapes.npy", np.array(self.shapes, np.int64))
        if self.dtype == "string":
            np.save(self.folder / f"{self.number}.lengths.npy", np.array(self.lengths, np.int64))
        shape = [sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*self.shapes, strict=True)]
        name = "labels" if self.name == _LABEL_COLUMN else self.name
        return {"name": name, "dtype": self.dtype, "shape": shape}


def _dtype_name(array: np.ndarray) -> str:
    return "string" if array.dtype.kind in "OU" else str(array.dtype)


def _label_array(label: Any, index: int) -> np.ndarray:
    """A label as int64, float64 or text."""
    try:
        array = np.asarray(label)
    except ValueError:
        array = np.asarray(None)
    if array.dtype.kind in "US" or (
        array.dtype.kind == "O" and array.size and all(isinstance(x, str) for x in array.flat)
    ):
        return array.astype(str).astype(object)
    if array.dtype.kind == "b" or (array.dtype.kind in "iu" and array.dtype != np.uint64):
        return array.astype(np.int64)
    if array.dtype.kind == "f" or str(array.dtype) in STORED_AS:
        if not np.isfinite(array.astype(np.float64)).all():
            raise InvalidInput(
                f"sample {index} has a label that is not a finite number", "remove the sample or label it"
            )
        return array.astype(np.float64)
    raise InvalidInput(
        f"sample {index} has a label of type {type(label).__name__} that hasten cannot read",
        "give numbers, text, or arrays of them",
    )
