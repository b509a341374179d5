"""A bundle as a single file: a zip that is packed the same way every time, and unpacked without trusting it."""

from __future__ import annotations

import os
import shutil
import stat
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hasten.bundle.manifest import MANIFEST, MAX_MANIFEST_BYTES, check_relative, parse_manifest
from hasten.errors import Failed, InvalidInput

SUFFIX = ".pack"
MAX_FILES = 10_000
MAX_BYTES = 64 << 30
MAX_RATIO = 200
RATIO_APPLIES_ABOVE_BYTES = 4 << 20
_EPOCH = (1980, 1, 1, 0, 0, 0)
_CHUNK = 1 << 20


def pack(folder: Path, out: Path, manifest: Mapping[str, Any]) -> None:
    """Write the bundle in `folder` to `out`. Weights are stored, as they do not compress; text is deflated."""
    with zipfile.ZipFile(out, "w", allowZip64=True) as archive:
        for name in [MANIFEST, *sorted(manifest["files"])]:
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = (stat.S_IFREG | 0o644) << 16
            is_text = Path(name).suffix in (".json", ".toml", ".txt", ".md", ".py", ".xml")
            entry.compress_type = zipfile.ZIP_DEFLATED if is_text else zipfile.ZIP_STORED
            entry.file_size = (folder / name).stat().st_size
            with open(folder / name, "rb") as source, archive.open(entry, "w") as target:
                shutil.copyfileobj(source, target, _CHUNK)


def is_pack(path: Path) -> bool:
    """Whether `path` is a zip with the manifest of a bundle in it."""
    try:
        packed_manifest(path)
    except (InvalidInput, Failed):
        return False
    return True


def packed_manifest(path: Path) -> dict[str, Any]:
    """The manifest in the pack at `path`, without unpacking it."""
    with _open(path) as archive:
        return _manifest(archive, path)


def unpack(path: Path, into: Path, max_bytes: int = MAX_BYTES) -> None:
    """Unpack the bundle at `path` into the empty folder `into`.

    Only files that the manifest names are written. Raises `InvalidInput` for links, paths that lead outside, names that
    occur twice, more than `max_bytes`, or a file that swells as only a zip bomb does.
    """
    with _open(path) as archive:
        manifest = _manifest(archive, path)
        wanted = {MANIFEST, *manifest["files"]}
        found = {entry.filename: entry for entry in _checked(archive, path, max_bytes)}
        missing = sorted(wanted - set(found))
        if missing:
            raise InvalidInput(f"{path.name}: the file {missing[0]} is missing", "copy the bundle again")
        total = sum(found[name].file_size for name in wanted)
        free = shutil.disk_usage(into).free
        if total > free:
            raise Failed(f"{path.name} needs {total:,} bytes to unpack, and {free:,} are free in {into}", "free space")
        for name in sorted(wanted):
            _extract(archive, found[name], into / name, path)


def _open(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except OSError as error:
        raise Failed(f"cannot read {path}: {error.strerror or error}") from None
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        raise InvalidInput(f"{path} is not a packed bundle", "give a bundle that hasten wrote") from None


def _manifest(archive: zipfile.ZipFile, path: Path) -> dict[str, Any]:
    try:
        entry = archive.getinfo(MANIFEST)
    except KeyError:
        raise InvalidInput(f"{path} is not a hasten bundle: it has no {MANIFEST}") from None
    if entry.file_size > MAX_MANIFEST_BYTES:
        raise InvalidInput(f"{path}: {MANIFEST} is too large to be a manifest")
    try:
        with archive.open(entry) as file:
            return parse_manifest(file.read(MAX_MANIFEST_BYTES), path.name)
    except (zipfile.BadZipFile, EOFError, OSError, RuntimeError, NotImplementedError) as error:
        raise InvalidInput(f"{path} is damaged: {error}", "copy the bundle again") from None


def _checked(archive: zipfile.ZipFile, path: Path, max_bytes: int) -> list[zipfile.ZipInfo]:
    entries = archive.infolist()
    if len(entries) > MAX_FILES:
        raise InvalidInput(f"{path.name} holds {len(entries):,} files: more than {MAX_FILES:,}")
    seen: set[str] = set()
    for entry in entries:
        check_relative(entry.filename, path.name)
        kind = stat.S_IFMT(entry.external_attr >> 16)
        if kind not in (0, stat.S_IFREG) or entry.is_dir():
            raise InvalidInput(
                f"{path.name}: {entry.filename} is a link or not a regular file", "do not use this bundle"
            )
        if entry.filename in seen:
            raise InvalidInput(f"{path.name}: {entry.filename} occurs twice", "do not use this bundle")
        seen.add(entry.filename)
        swells = entry.file_size > RATIO_APPLIES_ABOVE_BYTES and entry.file_size > MAX_RATIO * max(
            entry.compress_size, 1
        )
        if swells:
            raise InvalidInput(f"{path.name}: {entry.filename} swells like a zip bomb", "do not use this bundle")
    total = sum(entry.file_size for entry in entries)
    if total > max_bytes:
        raise InvalidInput(f"{path.name} unpacks to {total:,} bytes: more than the {max_bytes:,} allowed")
    return entries


def _extract(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, target: Path, path: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with archive.open(entry) as source, open(target, "xb") as file:
            left = entry.file_size
            while chunk := source.read(min(_CHUNK, left + 1)):
                left -= len(chunk)
                if left < 0:
                    raise InvalidInput(f"{path.name}: {entry.filename} is larger than it says")
                file.write(chunk)
            os.fchmod(file.fileno(), 0o644)
    except (zipfile.BadZipFile, EOFError, RuntimeError, NotImplementedError, ValueError) as error:
        raise InvalidInput(f"{path} is damaged: {error}", "copy the bundle again") from None
    except OSError as error:
        raise Failed(f"cannot unpack {entry.filename}: {error.strerror or error}") from None
