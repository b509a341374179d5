"""Reads .npz and .npy row by row: headers are checked before anything is read, and nothing is unpickled."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from hasten.data.fit import LABEL_KEYS, Fitter, Row, expected, expects, has_batch_axis
from hasten.errors import InvalidInput
from hasten.model import Tensor

MAX_BYTES = 64 << 30
"""The most that all arrays of a file may take uncompressed."""

MAX_ROW_BYTES = 2 << 30
_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, NotImplementedError, RuntimeError)


@dataclass(frozen=True)
class Header:
    """What a .npy header promises."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool

    @property
    def nbytes(self) -> int:
        total = self.dtype.itemsize
        for size in self.shape:
            total *= size
        return total


def rows(path: Path, fitter: Fitter, label: str | None) -> tuple[int, Iterator[Row]]:
    """How many samples `path` holds, and the samples. Raises `InvalidInput` for whatever is wrong."""
    if path.suffix == ".npy":
        return _npy(path, fitter, label)
    return _npz(path, fitter, label)


def _npy(path: Path, fitter: Fitter, label: str | None) -> tuple[int, Iterator[Row]]:
    inputs = fitter.signature.inputs
    if len(inputs) != 1:
        raise InvalidInput(
            f"{path.name} holds one array, the model expects {expects(fitter.signature)}",
            "save all inputs by name with numpy.savez(path, name=array, ...)",
        )
    if label is not None:
        raise InvalidInput(
            f"{path.name} holds one array, so there is no label {label!r} in it",
            "save inputs and labels by name with numpy.savez(path, name=array, label=labels)",
        )
    with path.open("rb") as file:
        header = _header(path.name, file)
        _check_size(path.name, header, path.stat().st_size - file.tell())
    name = inputs[0].name
    count, kinds = _plan(path.name, {name: header}, fitter)
    return count, _read(path, {name: header}, kinds, count, None)


def _npz(path: Path, fitter: Fitter, label: str | None) -> tuple[int, Iterator[Row]]:
    headers: dict[str, Header] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            total = sum(info.file_size for info in members.values())
            if total > MAX_BYTES:
                raise InvalidInput(
                    f"{path.name} would take {total / 1e9:.1f} GB uncompressed, more than hasten reads "
                    f"({MAX_BYTES / 1e9:.0f} GB)",
                    "save fewer samples: a few hundred decide most questions",
                )
            for name, info in members.items():
                with archive.open(info) as file:
                    header = _header(f"{path.name}: {name!r}", file)
                    _check_size(f"{path.name}: {name!r}", header, info.file_size - file.tell())
                    headers[name] = header
    except _BROKEN as error:
        raise InvalidInput(
            f"{path.name} is not a readable .npz file: {error}", "save it again with numpy.savez"
        ) from None
    label_name = _label_name(path, headers, fitter, label)
    label_header = headers.pop(label_name) if label_name is not None else None
    wanted = [tensor.name for tensor in fitter.signature.inputs]
    if set(headers) == {f"arr_{at}" for at in range(len(wanted))} and set(headers) != set(wanted):
        names = {f"arr_{at}": name for at, name in enumerate(wanted)}
        fitter.note("arrays without names were taken in the order of the model's inputs")
    else:
        names = {name: name for name in headers}
        fitter.names(list(headers), path.name)
    chosen = {key: headers[key] for key, name in names.items() if name in wanted}
    count, kinds = _plan(path.name, {names[key]: header for key, header in chosen.items()}, fitter)
    members_of = {names[key]: key for key in chosen}
    by_name = {names[key]: header for key, header in chosen.items()}
    if label_header is not None and label_name is not None:
        labels = label_header.shape[0] if label_header.shape else 1
        if labels != count and not (count == 1 and "row" not in kinds.values()):
            raise InvalidInput(
                f"{path.name} has {count} samples and {labels} labels (key {label_name!r}, shape "
                f"{list(label_header.shape)})",
                "give one label a sample",
            )
        members_of[label_name], by_name[label_name] = label_name, label_header
        kinds[label_name] = "row" if label_header.shape and labels == count else "constant"
    return count, _read(path, by_name, kinds, count, label_name, members_of)


def _label_name(path: Path, headers: dict[str, Header], fitter: Fitter, label: str | None) -> str | None:
    inputs = {tensor.name for tensor in fitter.signature.inputs}
    if label is not None:
        if label not in headers:
            raise InvalidInput(f"{path.name} has no label key {label!r}; it has {', '.join(map(repr, headers))}",
                               "name the key that holds the labels with --label")  # fmt: skip
        return label
    found = [name for name in LABEL_KEYS if name in headers and name not in inputs]
    if len(found) > 1:
        raise InvalidInput(f"{path.name} has both 'label' and 'labels'", "say which holds the labels",
                           f"--label {found[0]}")  # fmt: skip
    return found[0] if found else None


def _header(what: str, file: IO[bytes]) -> Header:
    try:
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
        elif version == (2, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_2_0(file)
        else:
            raise ValueError(f"version {version[0]}.{version[1]} of the format")
    except InvalidInput:
        raise
    except Exception as error:  # the header is a Python literal: anything may be in it
        raise InvalidInput(
            f"{what} is not a readable NumPy array: {(str(error) or type(error).__name__).splitlines()[0][:200]}",
            "save it again with numpy.save or numpy.savez",
        ) from None
    if dtype.hasobject:
        raise InvalidInput(
            f"{what} is an object array (a Python pickle), which hasten never loads",
            "save rectangular arrays; for samples of different lengths use .jsonl or module:function",
        )
    if dtype.fields is not None:
        raise InvalidInput(f"{what} is a structured array", "save one plain array per input")
    if any(size < 0 for size in shape):
        raise InvalidInput(f"{what} has a negative size in its header: {list(shape)}", "save it again")
    return Header(tuple(int(size) for size in shape), dtype, bool(fortran))


def _check_size(what: str, header: Header, available: int) -> None:
    if header.nbytes > MAX_BYTES:
        raise InvalidInput(
            f"{what} has the shape {list(header.shape)}: {header.nbytes / 1e9:.1f} GB, more than hasten reads "
            f"({MAX_BYTES / 1e9:.0f} GB)",
            "save fewer samples: a few hundred decide most questions",
        )
    if header.nbytes != available:
        raise InvalidInput(
            f"{what} is truncated or damaged: its header promises {header.nbytes} bytes ({header.dtype}"
            f"{list(header.shape)}), there are {available}",
            "copy or save it again",
        )


def _plan(what: str, headers: dict[str, Header], fitter: Fitter) -> tuple[int, dict[str, str]]:
    """For each array, whether its first axis counts samples ("row") or it belongs to every sample ("constant")."""
    kinds: dict[str, str] = {}
    for tensor in fitter.signature.inputs:
        kinds[tensor.name] = _kind(tensor, headers[tensor.name], fitter, what)
    lone = {name for name, kind in kinds.items() if kind == "lone"}
    stacked = {name: headers[name].shape[0] for name, kind in kinds.items() if kind == "row"}
    if lone and stacked:
        raise InvalidInput(
            f"{what}: {_shapes(headers, lone)} has no axis for the samples, {_shapes(headers, set(stacked))} has one; "
            f"the model expects {expects(fitter.signature)}",
            "stack every input along a first axis, one row a sample",
        )
    if len(set(stacked.values())) > 1:
        raise InvalidInput(
            f"{what}: the first axes differ: {', '.join(f'{name} has {size}' for name, size in stacked.items())}",
            "give every input one row a sample",
        )
    kinds = {name: "constant" if kind == "lone" else kind for name, kind in kinds.items()}
    count = next(iter(stacked.values()), 1)
    if count == 0:
        raise InvalidInput(f"{what} holds no samples: {_shapes(headers, set(stacked))}", "give at least one sample")
    constant = [name for name, kind in kinds.items() if kind == "constant"]
    if constant and stacked:
        fitter.note(f"{', '.join(constant)}: the same value for every sample")
    fitter.note("the first axis counts samples" if stacked else "one sample, without an axis for samples")
    return count, kinds


def _kind(tensor: Tensor, header: Header, fitter: Fitter, what: str) -> str:
    if tensor.shape is None:
        return "row" if header.shape else "lone"
    rank, found = len(tensor.shape), len(header.shape)
    whole = fitter.batch_axis != "yes" and not has_batch_axis(tensor)
    if whole and found == rank and (fitter.batch_axis == "no" or header.shape == tensor.shape):
        return "constant"
    if found in (rank, rank + 1) and found:
        return "row"
    if found == rank - 1:
        return "lone"
    raise InvalidInput(
        f"{what}: {tensor.name!r} has {found} axes (shape {list(header.shape)}); the model expects {expected(tensor)}, "
        f"so the array needs {rank} axes with one row a sample",
        "reshape the array",
    )


def _shapes(headers: dict[str, Header], names: set[str]) -> str:
    return ", ".join(f"{name} {list(header.shape)}" for name, header in headers.items() if name in names)


def _read(
    path: Path,
    headers: dict[str, Header],
    kinds: dict[str, str],
    count: int,
    label: str | None,
    members: dict[str, str] | None = None,
) -> Iterator[Row]:
    try:
        with ExitStack() as stack:
            archive = stack.enter_context(zipfile.ZipFile(path)) if members is not None else None
            streams: dict[str, Iterator[np.ndarray]] = {}
            for name, header in headers.items():
                if archive is not None and members is not None:
                    file: IO[bytes] = stack.enter_context(archive.open(_member(archive, members[name])))
                else:
                    file = stack.enter_context(path.open("rb"))
                _header(name, file)
                streams[name] = _stream(file, header, kinds[name] == "row", f"{path.name}: {name!r}")
            constants = {name: next(streams[name]) for name, kind in kinds.items() if kind == "constant"}
            for at in range(count):
                row = {name: constants[name] if name in constants else next(streams[name]) for name in headers}
                found = row.pop(label) if label is not None else None
                yield Row(row, found, f"{path.name}: sample {at}")
    except _BROKEN as error:
        raise InvalidInput(f"{path.name} is damaged: {error}", "copy or save it again") from None


def _member(archive: zipfile.ZipFile, name: str) -> str:
    return name + ".npy" if name + ".npy" in archive.NameToInfo else name


def _stream(file: IO[bytes], header: Header, by_row: bool, what: str) -> Iterator[np.ndarray]:
    """The array whole, or its rows one after the other; a Fortran-ordered one has to be read whole first."""
    shape = header.shape[1:] if by_row else header.shape
    if header.fortran and len(header.shape) > 1:
        _check_row(what, header.nbytes)
        whole = np.frombuffer(_exactly(file, header.nbytes), header.dtype).reshape(header.shape, order="F")
        yield from whole if by_row else (whole,)
        return
    size = header.nbytes // header.shape[0] if by_row else header.nbytes
    _check_row(what, size)
    while True:
        yield np.frombuffer(_exactly(file, size), header.dtype).reshape(shape)


def _check_row(what: str, size: int) -> None:
    if size > MAX_ROW_BYTES:
        raise InvalidInput(
            f"{what} would take {size / 1e9:.1f} GB of memory at once, more than the {MAX_ROW_BYTES / 1e9:.0f} GB that "
            "one sample may have",
            "save smaller samples, in C order",
        )


def _exactly(file: IO[bytes], size: int) -> bytes:
    data = file.read(size)
    if len(data) != size:
        raise EOFError("it ends before its last sample")
    return data
