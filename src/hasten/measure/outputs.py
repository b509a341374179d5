"""Saves and loads the outputs of a variant, one dict of arrays for each sample in order, without pickle."""

from __future__ import annotations

import contextlib
import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.errors import Failed

if TYPE_CHECKING:
    import numpy as np

    Outputs = Sequence[Mapping[str, np.ndarray]]


def save(path: Path, outputs: Outputs) -> None:
    """Write ordered outputs to `path` (.npz). Sizes may differ between samples; every sample has the same outputs.

    Each output is one flat buffer with its samples' shapes beside it. Types that NumPy cannot store by itself become
    float32 (bfloat16 and other small floats) or text (Python strings). The file appears whole or not at all.
    """
    import numpy as np

    names = list(outputs[0]) if outputs else []
    arrays: dict[str, Any] = {}
    for number, name in enumerate(names):
        try:
            values = [_plain(sample[name]) for sample in outputs]
        except KeyError:
            raise Failed(f"output {name!r} is missing from some samples") from None
        ranks = np.array([value.ndim for value in values], np.int64)
        arrays[f"{number}.ranks"] = ranks
        arrays[f"{number}.shapes"] = np.array([size for value in values for size in value.shape], np.int64)
        arrays[f"{number}.data"] = np.concatenate([value.reshape(-1) for value in values])
    header = json.dumps({"count": len(outputs), "names": names}).encode()
    arrays["header"] = np.frombuffer(header, np.uint8)
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with open(partial, "wb") as file:
            np.savez(file, **arrays)
        os.replace(partial, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise Failed(f"cannot write outputs to {path}: {error.strerror}", "free space, or use another folder") from None


def load(path: Path) -> list[dict[str, np.ndarray]]:
    """Read what `save` wrote. Raises `Failed` where the file is missing, cut short or something else."""
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as file:
            header = json.loads(bytes(file["header"]))
            columns = {
                name: _split(file[f"{number}.data"], file[f"{number}.ranks"], file[f"{number}.shapes"])
                for number, name in enumerate(header["names"])
            }
    except OSError as error:
        raise Failed(f"cannot read outputs from {path}: {error.strerror or error}") from None
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile):
        raise Failed(f"{path} does not hold saved outputs, or was cut short") from None
    return [{name: column[i] for name, column in columns.items()} for i in range(header["count"])]


def stacked(outputs: Outputs, name: str) -> np.ndarray | list[np.ndarray]:
    """One output of every sample: an array with samples first where their shapes agree, else a list of arrays."""
    import numpy as np

    values = [np.asarray(sample[name]) for sample in outputs]
    if len({value.shape for value in values}) == 1:
        return np.stack(values)
    return values


def _plain(value: Any) -> np.ndarray:
    import numpy as np

    array = np.asarray(value)
    if array.dtype.kind == "O":
        return array.astype(str)
    if array.dtype.kind == "V":
        return array.astype(np.float32)
    return array


def _split(data: np.ndarray, ranks: np.ndarray, shapes: np.ndarray) -> list[np.ndarray]:
    import numpy as np

    parts, at, start = [], 0, 0
    for rank in ranks.tolist():
        shape = tuple(shapes[at : at + rank].tolist())
        size = int(np.prod(shape, dtype=np.int64))
        parts.append(data[start : start + size].reshape(shape))
        at, start = at + rank, start + size
    return parts
