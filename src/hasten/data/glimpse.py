"""Looks at the first samples, before or after the model's signature is known."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hasten.data.fit import LABEL_KEYS, Fitter
from hasten.errors import InvalidInput
from hasten.model import Model, Signature, Tensor

READS = (".npz", ".npy", ".jsonl")


def peek(spec: Any, names: Sequence[str], count: int) -> list[dict[str, np.ndarray]]:
    """The first samples of `spec`, by the names of the inputs that they hold; [] for a kind that needs a signature.

    `names` are what the model could take, in order. Floating point comes as float32, as PyTorch's own default.
    """
    if not isinstance(spec, str | Path):
        from hasten.data import memory

        found = itertools.islice(memory.rows(spec, names), count)
        return [{n: _array(v) for n, v in _chosen(row.inputs, names, "the data").items()} for row in found]
    path, spec = Path(spec), str(spec)
    if not path.exists() and ":" not in spec:
        raise InvalidInput(f"there are no samples at {spec}", "name a file, a folder or module:function")
    if path.exists() and path.suffix not in READS:
        return []
    rows = itertools.islice(_rows(spec, path, names), count)
    return [{name: _array(value) for name, value in _chosen(row, names, spec).items()} for row in rows]


def first(
    model: Model,
    conversion: Mapping[str, Any],
    *,
    spec: str,
    label: str | None = None,
    preprocess: str | None = None,
    batch_axis: Any = "auto",
    count: int = 1000,
) -> dict[str, np.ndarray] | None:
    """The first samples of `spec` as one batch of `model`'s; None where they differ in shape.

    `conversion` may name the `columns` of each input, and say that values may be `missing`: see `data.ingest`.
    """
    from hasten.data import open_rows

    fitter = Fitter(model.signature, batch_axis, conversion.get("columns"), bool(conversion.get("missing")))
    _, rows, _ = open_rows(spec, fitter, label, preprocess, None, 0, counted=False)
    samples = list(itertools.islice((sample for row in rows for sample, _ in fitter.fit(row)), count))
    if not samples or len({tuple(array.shape for array in sample.values()) for sample in samples}) > 1:
        return None
    return {name: np.stack([sample[name] for sample in samples]) for name in samples[0]}


def _rows(spec: str, path: Path, names: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    if path.suffix == ".npy" and path.exists():
        with np.errstate(all="ignore"):
            yield from ({names[0]: row} for row in np.load(path, mmap_mode="r", allow_pickle=False))
        return
    if path.suffix == ".npz" and path.exists():
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files if name not in LABEL_KEYS or name in names}
        longest = max((len(array) for array in arrays.values() if array.ndim), default=0)
        for at in range(longest):
            yield {name: array[at] if array.ndim and len(array) == longest else array for name, array in arrays.items()}
        return
    # One pseudo-input tells the readers that a plain value is the first input.
    fitter = Fitter(Signature((Tensor(names[0], "any", None),), ()))
    if path.exists():
        from hasten.data import tables

        found = tables.rows(path, fitter, None)
    else:
        from hasten.data import functions

        found = functions.rows(spec, fitter, None)
    yield from (row.inputs for row in found)


def _chosen(row: Mapping[str, Any], names: Sequence[str], spec: str) -> dict[str, Any]:
    """The inputs among what a row holds: by name, else in order where there are no more than the model takes."""
    named = {name: row[name] for name in names if name in row}
    if named:
        return named
    values = [value for name, value in row.items() if name not in LABEL_KEYS]
    if len(values) > len(names) or not values:
        raise InvalidInput(
            f"the samples of {spec} have {', '.join(map(repr, row)) or 'nothing'}; the model takes {', '.join(names)}",
            "name the samples' arrays after the model's arguments",
        )
    return dict(zip(names, values, strict=False))


def _array(value: Any) -> np.ndarray:
    array = np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)
    if array.dtype.kind in "OUS":
        raise InvalidInput("the samples hold text, and the model takes numbers", "preprocess them with --preprocess")
    return array.astype(np.float32) if array.dtype == np.float64 else array
