"""Reads samples: `ingest` checks them against a model in a worker, and `SampleSet` reads what it wrote."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from hasten.errors import Failed, InvalidInput
from hasten.model import Model
from hasten.workload import Samples

if TYPE_CHECKING:
    from hasten.data.fit import BatchAxis, Fitter, Row
    from hasten.data.glimpse import peek
    from hasten.data.images import ImageOptions, Layout
    from hasten.data.store import SampleSet
    from hasten.isolate import Limits, Scope

__all__ = ["SampleSet", "ingest", "ingest_here", "peek"]

SUFFIXES = (".npz", ".npy", ".jsonl", ".csv", ".parquet")
_BASE_MEMORY_BYTES = 4 << 30
_BASE_SECONDS = 300.0
_FUNCTION_SECONDS = 1800.0
_SLOWEST_BYTES_PER_S = 10e6


def __getattr__(name: str) -> Any:
    if name == "SampleSet":
        from hasten.data.store import SampleSet

        return SampleSet
    if name == "peek":
        from hasten.data.glimpse import peek

        return peek
    raise AttributeError(name)


def ingest(
    spec: Any,
    model: Model,
    into: Path,
    *,
    label: str | None = None,
    preprocess: str | None = None,
    batch_axis: BatchAxis = "auto",
    limit: int | None = None,
    seed: int = 0,
    image_size: int | Sequence[int] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    layout: Layout | None = None,
    tokenizer: Path | None = None,
    columns: Mapping[str, Sequence[str]] | None = None,
    missing: bool = False,
    chat: Path | None = None,
    limits: Limits | None = None,
) -> Samples:
    """Read the samples that `spec` names, check them against `model`, and write them under `into`, in a worker.

    `spec` is a file (.npz, .npy, .jsonl, .csv, .parquet), a folder of images or `module:function`; None makes samples
    from the signature. Samples in memory (see `data.memory`) are read in this process. `label` names the key or column
    of the labels. `batch_axis` says whether a sample carries the model's batch axis. `limit` keeps that many samples,
    drawn with `seed` (the first ones of a function). `preprocess` is `module:function`, or for images
    `resize=224,mean=...,std=...,layout=nchw`, which stands for the arguments of those names. Text becomes token numbers
    by `tokenizer`, a tokenizer.json. `columns` are the names of each input's features, by which the columns of a table
    are found; `missing` allows NaN, and empty cells for it. `chat` is the Hugging Face folder whose chat template turns
    `messages` into text, where text is expected. Raises `InvalidInput` that names what was expected beside
    what was found.
    """
    from hasten.isolate import Limits, WorkerFailed, run

    if spec is not None and not isinstance(spec, str | Path):
        return ingest_here(
            spec,
            model,
            into,
            label=label,
            preprocess=preprocess,
            batch_axis=batch_axis,
            limit=limit,
            seed=seed,
            tokenizer=tokenizer,
            columns=columns,
            missing=missing,
        )
    if preprocess is not None and "=" in preprocess:
        from hasten.data.preprocess import settings

        given = {"image_size": image_size, "mean": mean, "std": std, "layout": layout} | settings(preprocess)
        image_size, mean, std, layout = given["image_size"], given["mean"], given["std"], given["layout"]
        preprocess = None
    size = image_size if not isinstance(image_size, int) else (image_size, image_size)
    payload = {
        "spec": None if spec is None else str(spec),
        "model": model.to_json(),
        "into": str(into),
        "label": label,
        "preprocess": preprocess,
        "batch_axis": batch_axis,
        "limit": limit,
        "seed": seed,
        "tokenizer": None if tokenizer is None else str(tokenizer.absolute()),
        "columns": {name: list(titles) for name, titles in (columns or {}).items()},
        "missing": missing,
        "chat": None if chat is None else str(chat.absolute()),
        "images": {
            "image_size": None if size is None else list(size),
            "mean": None if mean is None else [float(value) for value in mean],
            "std": None if std is None else [float(value) for value in std],
            "layout": layout,
        },
    }
    path = None if spec is None else Path(spec)
    bytes_read = path.stat().st_size if path is not None and path.is_file() else 0
    slow = path is not None and not path.is_file()  # a function may download, a folder may hold many images
    seconds = _FUNCTION_SECONDS if slow else _BASE_SECONDS
    default = Limits(_BASE_MEMORY_BYTES + 2 * bytes_read, seconds + bytes_read / _SLOWEST_BYTES_PER_S)
    chosen = default if limits is None else replace(
        limits,
        memory_bytes=limits.memory_bytes or default.memory_bytes,
        seconds=limits.seconds or default.seconds,
    )  # fmt: skip
    try:
        return Samples.from_json(run(f"{__name__}:ingest_worker", payload, limits=chosen))
    except WorkerFailed as error:
        raise InvalidInput(
            f"reading the samples from {spec or 'the signature'} failed: {error.outcome.reason}",
            "the data is damaged or larger than the limits allow: try fewer samples",
        ) from None  # fmt: skip


def ingest_worker(payload: dict[str, Any], scope: Scope) -> dict[str, Any]:
    from hasten.data.images import ImageOptions

    images = payload["images"]
    given = {key: None if images[key] is None else tuple(images[key]) for key in ("image_size", "mean", "std")}
    options = ImageOptions(**given, layout=images["layout"])
    samples = ingest_here(
        payload["spec"],
        Model.from_json(payload["model"]),
        Path(payload["into"]),
        label=payload["label"],
        preprocess=payload["preprocess"],
        batch_axis=payload["batch_axis"],
        limit=payload["limit"],
        seed=payload["seed"],
        images=options,
        tokenizer=None if payload["tokenizer"] is None else Path(payload["tokenizer"]),
        columns=payload["columns"],
        missing=payload["missing"],
        chat=None if payload["chat"] is None else Path(payload["chat"]),
        progress=scope.progress,
    )
    return samples.to_json()


def ingest_here(
    spec: Any,
    model: Model,
    into: Path,
    *,
    label: str | None = None,
    preprocess: str | None = None,
    batch_axis: BatchAxis = "auto",
    limit: int | None = None,
    seed: int = 0,
    images: ImageOptions | None = None,
    tokenizer: Path | None = None,
    columns: Mapping[str, Sequence[str]] | None = None,
    missing: bool = False,
    chat: Path | None = None,
    progress: Any = None,
) -> Samples:
    """What `ingest` does, in this process."""
    from hasten.data.arrays import MAX_BYTES
    from hasten.data.fit import Fitter
    from hasten.data.writer import SampleWriter

    if batch_axis not in ("auto", "yes", "no"):
        raise InvalidInput(f"batch_axis is {batch_axis!r}", "say auto, yes or no")
    if limit is not None and limit < 1:
        raise InvalidInput(f"a limit of {limit} leaves no samples", "give at least 1")
    fitter = Fitter(model.signature, batch_axis, columns, missing)
    reader = fitter
    takes_text = [(tensor.name, tensor.dtype) for tensor in model.signature.inputs] == [("text", "string")]
    reads_text = tokenizer is not None and spec is not None and Path(str(spec)).suffix not in (".npz", ".npy")
    if reads_text:
        from hasten.data.text import AS_TEXT

        reader = Fitter(AS_TEXT)  # what comes is text, and becomes the model's inputs below
    count, rows, source = open_rows(spec, reader, label, preprocess, images, seed, counted=limit is not None)
    if reads_text:
        from hasten.data.text import PAIR, with_text, with_tokens

        rows = with_tokens(rows, Path(str(tokenizer)), [tensor.name for tensor in model.signature.inputs])
        first = next(rows, None)
        if first is not None:
            rows = itertools.chain([first], rows)
            fitter.signature = with_text(model.signature, PAIR in first.inputs)
    if takes_text:
        from hasten.data.chats import with_chats

        rows = with_chats(rows, chat)
    kept = None
    if limit is not None and count is not None and limit < count:
        kept = frozenset(random.Random(seed).sample(range(count), limit))
        fitter.note(f"{limit} of {count} drawn with seed {seed}")
    with SampleWriter(Path(into), MAX_BYTES) as writer:
        for number, row in enumerate(rows):
            if kept is not None and number not in kept:
                continue
            for sample, found in fitter.fit(row):
                writer.add(sample, found)
            if progress is not None and number % 64 == 0:
                progress(number / count if count else None, f"{writer.count} samples read")
            if limit is not None and count is None and writer.count >= limit:
                fitter.note(f"the first {writer.count}")
                break
        if not writer.count:
            raise InvalidInput(f"{source} holds no samples", "give at least one sample")
        kind: Literal["data", "synthetic"] = "synthetic" if spec is None else "data"
        return writer.finish(kind, "; ".join([source, *fitter.notes]))


def open_rows(
    spec: Any,
    fitter: Fitter,
    label: str | None,
    preprocess: str | None,
    images: ImageOptions | None,
    seed: int,
    counted: bool,
) -> tuple[int | None, Iterator[Row], str]:
    """How many samples there are (None where that is not known), the samples, and what to call the source.

    `counted` asks for the number even where it takes reading the file twice.
    """
    if spec is None:
        from hasten.data import synthetic

        sizes = synthetic.sizes(fitter.signature)
        source = "made up from the signature" + (f" with {sizes}" if sizes else "")
        return synthetic.count(fitter.signature), synthetic.rows(fitter.signature, seed), source
    if not isinstance(spec, str | Path):
        from hasten.data import memory

        names = [tensor.name for tensor in fitter.signature.inputs]
        return None, _preprocessed(memory.rows(spec, names), preprocess), "samples in memory"
    path, text = Path(spec), str(spec)
    if not path.exists() and ":" in text:
        from hasten.data import functions

        return None, _preprocessed(functions.rows(text, fitter, label), preprocess), text
    _check(path)
    from hasten.data import audio

    if audio.is_audio(fitter.signature) and (path.is_dir() or path.suffix == ".jsonl"):
        if preprocess is not None:
            raise InvalidInput("clips are read as they are", "leave --preprocess out")
        number, clips = audio.rows(path, fitter, label)
        return number, clips, path.name
    if path.is_dir():
        from hasten.data import images as reader
        from hasten.isolate import resolve

        if label is not None:
            raise InvalidInput("images take their labels from the names of sub-folders",
                               "leave out --label, and put the images of one label in one folder")  # fmt: skip
        function = None if preprocess is None else resolve(preprocess)
        count, rows = reader.rows(path, fitter, images or reader.ImageOptions(), function)
        return count, rows, path.name
    if path.suffix in (".npz", ".npy"):
        from hasten.data import arrays

        count, rows = arrays.rows(path, fitter, label)
        return count, _preprocessed(rows, preprocess), path.name
    from hasten.data import tables
    from hasten.data.fit import Fitter

    again = Fitter(fitter.signature, fitter.batch_axis, fitter.columns, fitter.missing)
    total = sum(1 for _ in tables.rows(path, again, label)) if counted else None
    return total, _preprocessed(tables.rows(path, fitter, label), preprocess), path.name


def _preprocessed(rows: Iterator[Row], preprocess: str | None) -> Iterator[Row]:
    """Rows whose inputs went through the user's function, dict to dict."""
    if preprocess is None:
        yield from rows
        return
    from hasten.data.functions import guard
    from hasten.isolate import resolve

    function = resolve(preprocess)
    for row in rows:
        inputs = guard(preprocess, lambda row=row: function(dict(row.inputs)))  # type: ignore[misc]
        if not isinstance(inputs, dict):
            raise InvalidInput(f"{preprocess} returned a {type(inputs).__name__}", "return a dict, one key an input")
        yield replace(row, inputs=inputs)


def _check(path: Path) -> None:
    if not path.exists():
        raise InvalidInput(
            f"there are no samples at {path}", f"name a file ({', '.join(SUFFIXES)}), a folder or module:function"
        )
    if path.is_dir():
        return
    if path.suffix not in SUFFIXES:
        raise InvalidInput(f"{path.name} is no kind of data that hasten reads",
                           f"use one of {', '.join(SUFFIXES)}, a folder of images or module:function")  # fmt: skip
    if path.stat().st_size == 0:
        raise InvalidInput(f"{path.name} is empty", "give at least one sample")
    if not os.access(path, os.R_OK):
        raise Failed(f"{path} may not be read", "change its permissions", f"chmod u+r {path}")
