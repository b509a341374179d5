"""Reads .jsonl, .csv and .parquet: one row is one sample, and columns are inputs."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hasten.data.fit import LABEL_KEYS, Fitter, Row, expects
from hasten.errors import InvalidInput
from hasten.model import Tensor


def rows(path: Path, fitter: Fitter, label: str | None) -> Iterator[Row]:
    """The samples in `path`, by its suffix. Raises `InvalidInput` for whatever is wrong, naming the line."""
    return {".jsonl": _jsonl, ".csv": _csv, ".parquet": _parquet}[path.suffix](path, fitter, label)


def _jsonl(path: Path, fitter: Fitter, label: str | None) -> Iterator[Row]:
    inputs = [tensor.name for tensor in fitter.signature.inputs]
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        where = f"{path.name}: line {number}"
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"{where} is not JSON: {error}", "write one JSON object a line") from None
        if not isinstance(value, dict):
            if len(inputs) != 1:
                raise InvalidInput(
                    f"{where} is a {type(value).__name__}, the model expects {expects(fitter.signature)}",
                    "write an object with one key an input on each line",
                )
            value = {inputs[0]: value}
        if isinstance(value.get("inputs"), dict) and "inputs" not in inputs:
            value = {**value["inputs"], **{key: item for key, item in value.items() if key != "inputs"}}
        yield _split(value, inputs, label, where)


def _split(value: Mapping[str, Any], inputs: Sequence[str], label: str | None, where: str) -> Row:
    key = label
    if key is None:
        key = next((name for name in LABEL_KEYS if name in value and name not in inputs), None)
    elif key not in value:
        raise InvalidInput(f"{where} has no label {key!r}; it has {', '.join(map(repr, value))}",
                           "give every sample a label, or name another key with --label")  # fmt: skip
    if key is not None and value[key] is None:
        raise InvalidInput(f"{where} has an empty label", "give every sample a label, or none")
    found = None if key is None else value[key]
    return Row({name: item for name, item in value.items() if name != key}, found, where)


def _lines(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            yield from file
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path.name} is not UTF-8 text: {error}", "save it as UTF-8") from None


def _csv(path: Path, fitter: Fitter, label: str | None) -> Iterator[Row]:
    lines = _lines(path)
    first = list(itertools.islice(lines, 5))
    if not first:
        return
    dialect = _dialect("".join(first))
    reader = csv.reader(itertools.chain(first, lines), dialect)
    try:
        header = next(reader, [])
        if all(_is_number(cell) for cell in header):
            names, records = [str(at) for at in range(len(header))], itertools.chain([header], reader)
            fitter.note("no header line: columns are numbered from 0")
        else:
            names, records = [cell.strip() for cell in header], itertools.chain(reader)
        if len(set(names)) != len(names):
            raise InvalidInput(f"{path.name} has two columns of the same name", "give each column its own name")
        key, take = _columns(path, names, fitter, label)
        for number, cells in enumerate(records, 1):
            if not any(cell.strip() for cell in cells):
                continue
            where = f"{path.name}: row {number}"
            if len(cells) != len(names):
                raise InvalidInput(f"{where} has {len(cells)} columns, the first line has {len(names)}",
                                   "quote cells that hold the separator")  # fmt: skip
            found = None
            if key is not None:
                text = cells[key].strip()
                if not text:
                    raise InvalidInput(f"{where} has an empty label", "give every sample a label, or none")
                found = _label(text)
            yield Row(take(cells, where), found, where)
    except csv.Error as error:
        raise InvalidInput(f"{path.name} is not readable as CSV near line {reader.line_num}: {error}",
                           "save it as plain CSV") from None  # fmt: skip


def _dialect(text: str) -> Any:
    first = text.splitlines()[0] if text.splitlines() else ""
    if "," in first:
        return csv.get_dialect("excel")
    try:
        return csv.Sniffer().sniff(text, ";\t|")
    except csv.Error:
        return csv.get_dialect("excel")


def _columns(
    path: Path, names: list[str], fitter: Fitter, label: str | None
) -> tuple[int | None, Callable[[list[str], str], dict[str, Any]]]:
    """Which column is the label, and how a row's cells become inputs."""
    inputs = fitter.signature.inputs
    key = _label_column(path, names, fitter, label)
    features = [at for at in range(len(names)) if at != key]
    if len(inputs) == 1 and inputs[0].dtype == "string" and inputs[0].shape is None:
        return key, lambda cells, where: {names[at]: cells[at] for at in features}  # which is the text is found later
    places = _places(path, names, features, fitter, key)

    def take(cells: list[str], where: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for tensor in inputs:
            at = places[tensor.name]
            if isinstance(at, int):
                found[tensor.name] = _cell(cells[at], tensor, where, names[at], fitter.missing)
            else:
                found[tensor.name] = [_number(cells[i], tensor, where, names[i], fitter.missing) for i in at]
        return found

    return key, take


def _label_column(path: Path, names: Sequence[str], fitter: Fitter, label: str | None) -> int | None:
    if label is not None and label not in names:
        raise InvalidInput(f"{path.name} has no label column {label!r}; it has {', '.join(map(repr, names))}",
                           "name the label's column with --label")  # fmt: skip
    wanted = [tensor.name for tensor in fitter.signature.inputs]
    chosen = label or next((name for name in LABEL_KEYS if name in names and name not in wanted), None)
    return None if chosen is None else list(names).index(chosen)


def _places(
    path: Path, names: Sequence[str], features: Sequence[int], fitter: Fitter, key: int | None
) -> dict[str, int | list[int]]:
    """Where each input is: the column of its name, those of its features' names, or columns in order."""
    inputs = fitter.signature.inputs
    at = {names[place]: place for place in features}
    if all(tensor.name in at for tensor in inputs):
        fitter.names(list(at), path.name)
        return {tensor.name: at[tensor.name] for tensor in inputs}
    known = [name for tensor in inputs for name in fitter.columns.get(tensor.name, ())]
    missing = [name for name in known if name not in at]
    if known and len(missing) < len(known):
        if missing:
            raise InvalidInput(
                f"{path.name} has no column {', '.join(map(repr, missing[:8]))}, which the model was fitted with; "
                f"it has {', '.join(map(repr, at))}",
                "name the columns as they were when the model was fitted",
            )
        extra = [name for name in at if name not in known]
        if extra:
            fitter.note(f"ignored {', '.join(map(repr, extra[:8]))}, which the model does not take")
        fitter.note("columns were found by the names that the model was fitted with")
        return {tensor.name: [at[name] for name in fitter.columns[tensor.name]] for tensor in inputs}
    shape = inputs[0].shape if len(inputs) == 1 else None
    if shape is not None and len(shape) == 2 and (not isinstance(shape[1], int) or shape[1] == len(features)):
        fitter.note(f"{inputs[0].name}: {len(features)} columns in order")
        return {inputs[0].name: list(features)}
    single = all(tensor.shape is not None and len(tensor.shape) == 2 and tensor.shape[1] == 1 for tensor in inputs)
    if single and len(inputs) == len(features) and not any(tensor.name in at for tensor in inputs):
        fitter.note(f"{len(features)} columns in the order of the model's inputs")
        return {tensor.name: place for tensor, place in zip(inputs, features, strict=True)}
    label_note = f" besides the label {names[key]!r}" if key is not None else " (and no label column)"
    raise InvalidInput(
        f"{path.name} has {len(features)} columns{label_note}: {', '.join(names[at] for at in features[:8])}"
        f"{', ...' if len(features) > 8 else ''}; the model expects {expects(fitter.signature)}",
        "name the columns after the inputs, or give as many as the only input has features; name the label's column "
        "with --label",
    )


def _cell(text: str, tensor: Tensor, where: str, column: str, missing: bool) -> Any:
    """One cell as one input: a number or text; a JSON list where the input has axes."""
    if text.lstrip().startswith("[") and tensor.dtype != "string":
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise InvalidInput(f"{where}: column {column!r} is not a JSON list", "write lists as [1, 2, 3]") from None
    value = text if tensor.dtype == "string" else _number(text, tensor, where, column, missing)
    single = tensor.shape is not None and len(tensor.shape) == 2 and tensor.shape[1] == 1
    return [value] if single else value


def _number(text: str, tensor: Tensor, where: str, column: str, missing: bool) -> float | int | bool | str:
    text = text.strip()
    if tensor.dtype == "string":
        return text
    if missing and not text and "float" in tensor.dtype:
        return float("nan")
    if tensor.dtype == "bool" and text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return float(text) if "float" in tensor.dtype else int(text)
    except ValueError:
        found = "empty" if not text else repr(text[:40])
        raise InvalidInput(
            f"{where}: column {column!r} is {found}, the model takes {tensor.dtype}", "give a number in every cell"
        ) from None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _label(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _parquet(path: Path, fitter: Fitter, label: str | None) -> Iterator[Row]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InvalidInput(f"reading {path.name} needs pyarrow, which is not installed", "install it",
                           "pip install pyarrow") from None  # fmt: skip
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            names = list(file.schema_arrow.names)
            features = [at for at, name in enumerate(names) if name not in (label, *LABEL_KEYS)]
            places = _places(path, names, features, fitter, None)
            number = 0
            for batch in file.iter_batches(batch_size=64):
                for record in batch.to_pylist():
                    where = f"{path.name}: row {number}"
                    row = _split(record, [tensor.name for tensor in fitter.signature.inputs], label, where)
                    yield Row(
                        {name: _of_record(row.inputs, names, at) for name, at in places.items()}, row.label, where
                    )
                    number += 1
    except (pyarrow.ArrowException, OSError) as error:
        raise InvalidInput(f"{path.name} is not a readable Parquet file: {str(error).splitlines()[0]}",
                           "save it again") from None  # fmt: skip


def _of_record(values: Mapping[str, Any], names: Sequence[str], at: int | Sequence[int]) -> Any:
    """An input's value, or its features' as a list."""
    if isinstance(at, int):
        return values[names[at]]
    return [float("nan") if values[names[place]] is None else values[names[place]] for place in at]
