"""Reads clips of speech: a folder of .wav files with their transcripts in a table, or a .jsonl that names files."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hasten.data.fit import Fitter, Row
from hasten.data.sound import read_wav
from hasten.errors import InvalidInput
from hasten.model import Signature, Tensor

AUDIO = "audio"
AS_AUDIO = Signature((Tensor(AUDIO, "float32", ("batch", "samples")),), ())
"""What readers are told to look for where speech is expected."""
TABLES = ("transcripts.csv", "metadata.csv", "transcripts.jsonl", "metadata.jsonl")
FILE_KEYS = ("audio", "file", "file_name", "filename", "path", "wav")
TEXT_KEYS = ("text", "label", "transcript", "transcription", "sentence")
SUFFIXES = frozenset({".wav", ".wave"})


def is_audio(signature: Signature) -> bool:
    """Whether samples are clips of speech."""
    return signature.inputs == AS_AUDIO.inputs


def rows(path: Path, fitter: Fitter, label: str | None) -> tuple[int, Iterator[Row]]:
    """How many clips the folder or .jsonl file `path` has, and the clips. The table tells which, where there is one."""
    if path.is_file():
        entries = _entries(path, label)
        return len(entries), _read(path.parent, entries, path.name)
    table = next((path / name for name in TABLES if (path / name).is_file()), None)
    if table is not None:
        entries = _entries(table, label)
        fitter.note(f"transcripts of {table.name}")
        return len(entries), _read(path, entries, table.name)
    if label is not None:
        raise InvalidInput(f"{path} has no table with a column {label!r}", f"write {TABLES[0]} with file and text")
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
    if not files:
        raise InvalidInput(f"{path} holds no .wav files", "convert clips: ffmpeg -i INPUT -ar 16000 -ac 1 OUTPUT.wav")
    fitter.note("clips without transcripts")
    return len(files), _read(path, [(str(file.relative_to(path)), None) for file in files], path.name)


def _entries(table: Path, label: str | None) -> list[tuple[str, str | None]]:
    """The file and the text of each clip."""
    found = []
    for number, row in enumerate(_records(table), 1):
        where = f"{table.name}: clip {number}"
        file = next((row[key] for key in FILE_KEYS if isinstance(row.get(key), str) and row[key]), None)
        if file is None:
            raise InvalidInput(
                f"{where} names no file; it has {', '.join(map(repr, row)) or 'nothing'}",
                f"name the file in one of: {', '.join(FILE_KEYS)}",
            )
        key = label or next((key for key in TEXT_KEYS if key in row), None)
        if label is not None and label not in row:
            raise InvalidInput(f"{where} has no label {label!r}; it has {', '.join(map(repr, row))}", "name another")
        text = None if key is None else row[key]
        if key is not None and (not isinstance(text, str) or not text.strip()):
            raise InvalidInput(f"{where} has an empty transcript", "give every clip a transcript, or none")
        found.append((file, text))
    if not found:
        raise InvalidInput(f"{table} names no clips", "give at least one")
    return found


def _records(table: Path) -> Iterator[Mapping[str, Any]]:
    try:
        with table.open(encoding="utf-8-sig", newline="") as file:
            if table.suffix == ".csv":
                yield from csv.DictReader(file)
                return
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                value = json.loads(line)
                if not isinstance(value, dict):
                    raise InvalidInput(
                        f"{table.name}: line {number} is no object", 'write {"audio": FILE, "text": TEXT}'
                    )
                yield value
    except (UnicodeDecodeError, ValueError, RecursionError, csv.Error) as error:
        raise InvalidInput(f"{table.name} cannot be read: {error}", "save it as UTF-8 text") from None


def _read(folder: Path, entries: list[tuple[str, str | None]], where: str) -> Iterator[Row]:
    for file, text in entries:
        path = folder / file
        if not path.is_file():
            raise InvalidInput(f"{where} names {file}, which is not there", f"paths are relative to {folder}")
        yield Row({AUDIO: read_wav(path)}, text, file)
