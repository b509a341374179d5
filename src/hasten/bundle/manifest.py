"""The manifest of a bundle, `bundle.json`: what is inside, and the SHA-256 of every file; its paths are not trusted."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from hasten.errors import Failed, InvalidInput

SCHEMA = "hasten.bundle/1"
MANIFEST = "bundle.json"
FALLBACK = "fallback"
"""The folder of the second bundle inside, for machines that lack the runtime of the first."""
MAX_MANIFEST_BYTES = 16 << 20


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest in `folder`, its shape checked. Raises `InvalidInput` where it is not one."""
    path = folder / MANIFEST
    try:
        if path.is_symlink() or not path.is_file():
            raise InvalidInput(f"{folder} is not a hasten bundle: it has no {MANIFEST}")
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise InvalidInput(f"{path} is too large to be a manifest")
        return parse_manifest(path.read_bytes(), str(folder))
    except OSError as error:
        raise Failed(f"cannot read {path}: {error.strerror}") from None


def parse_manifest(content: bytes, where: str) -> dict[str, Any]:
    """`content` as a manifest; `where` names the bundle in errors."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        raise InvalidInput(f"{where}: {MANIFEST} is not JSON", "write the bundle again") from None
    schema = found.get("schema") if isinstance(found, dict) else None
    if schema != SCHEMA:
        fix = "use a newer hasten" if str(schema).startswith("hasten.bundle/") else "give a bundle that hasten wrote"
        raise InvalidInput(f"{where}: the schema of {MANIFEST} is {schema!r}, not {SCHEMA}", fix)
    files = found.get("files")
    parts = found.get("parts")
    good = isinstance(files, dict) and all(isinstance(value, str) for value in files.values())
    if not good or not isinstance(parts, dict) or "main" not in parts:
        raise InvalidInput(f"{where}: {MANIFEST} is incomplete", "write the bundle again")
    for name in files:
        check_relative(name, where)
    for part in parts.values():
        path = part.get("path") if isinstance(part, dict) else None
        if path not in files:
            raise InvalidInput(f"{where}: the model {path!r} is not among the files of the bundle")
    return dict(found)


def pins(wanted: Mapping[str, Any]) -> str:
    """The packages with their versions that the runtime of a manifest is, as pip takes them."""
    found = {wanted.get("package"): wanted.get("version"), **(wanted.get("beside") or {})}
    return " ".join(f"{name}=={number}" for name, number in found.items())


def check_relative(name: str, where: str) -> None:
    """Refuse a path that is absolute, leads upwards, or is written in another system's way."""
    path = PurePosixPath(name)
    odd = not name or path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name or not name.isprintable()
    if odd or str(path) != name:
        raise InvalidInput(f"{where}: the path {name!r} leads outside the bundle", "do not use this bundle")


def inside(folder: Path, name: str) -> Path:
    """The regular file `name` in `folder`. Raises `InvalidInput` for a link, or a path that leads outside."""
    check_relative(name, folder.name)
    path = folder / name
    try:
        resolved = path.resolve(strict=True)
    except (OSError, RuntimeError):
        raise InvalidInput(f"{folder.name}: the file {name} is missing", "copy or write the bundle again") from None
    if path.is_symlink() or resolved != folder.resolve() / name or not resolved.is_file():
        raise InvalidInput(f"{folder.name}: {name} is a link or not a regular file", "do not use this bundle")
    return path


def digest(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_files(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Check every file against its SHA-256. Raises `InvalidInput` with the name of the first that differs."""
    for name, expected in manifest["files"].items():
        path = inside(folder, name)
        try:
            found = digest(path)
        except OSError as error:
            raise Failed(f"cannot read {path}: {error.strerror}") from None
        if found != expected:
            raise InvalidInput(
                f"{folder.name}: the file {name} was changed after the bundle was written (SHA-256 {found[:12]}..., "
                f"expected {str(expected)[:12]}...)",
                "copy or write the bundle again",
            )


def refuse_code(folder: Path, manifest: Mapping[str, Any], trust: bool) -> None:
    """Raise `InvalidInput` for a bundle whose model can run code when it is opened, unless that is trusted."""
    formats = {part.get("format") for part in manifest.get("parts", {}).values() if isinstance(part, Mapping)}
    if "pt2" in formats and not trust:
        raise InvalidInput(
            f"{folder.name} holds an exported PyTorch program, and opening one can run code that it holds",
            "pass --trust (in Python: trust=True) if you made it or trust who did",
        )
