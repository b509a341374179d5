"""Looks into a bundle without running it: its variant, its recipe and its study."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hasten.bundle.manifest import FALLBACK, MANIFEST, check_files, digest, inside, read_manifest, refuse_code
from hasten.bundle.pack import is_pack, unpack
from hasten.errors import Failed, HastenError, InvalidInput
from hasten.model import Model, Signature
from hasten.paths import cache_dir
from hasten.recipe import Recipe
from hasten.runtimes.base import runtime
from hasten.study import Study
from hasten.variant import Variant
from hasten.workload import Padding


@dataclass(frozen=True)
class Contents:
    """What a bundle holds. `signature` is that of the original model, which the bundle's `variant` still serves."""

    folder: Path
    variant: Variant
    recipe: Recipe
    signature: Signature
    padding: Padding | None
    manifest: Mapping[str, Any]


def is_bundle(path: Path) -> bool:
    """Whether a bundle is at `path`, as a folder or as a packed file; its hashes are not checked yet."""
    if path.is_file():
        return is_pack(path)
    return (path / MANIFEST).is_file()


def read(path: Path, *, trust: bool = False) -> Contents:
    """The contents of the bundle at `path`, every hash checked; a pack is unpacked into hasten's cache folder.

    `trust` allows a model that can run code when it is opened.
    """
    folder = _folder(path)
    manifest = read_manifest(folder)
    check_files(folder, manifest)
    folder, manifest = usable(folder, manifest)
    refuse_code(folder, manifest, trust)
    try:
        parts = {
            str(name): replace(Model.from_json(part), path=inside(folder, part["path"]).absolute())
            for name, part in manifest["parts"].items()
        }
        return Contents(
            folder,
            Variant(parts, manifest["program"]),
            Recipe.from_json(manifest["recipe"]),
            Signature.from_json(manifest["signature"]),
            Padding.from_json(manifest["padding"]),
            manifest,
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(f"{path}: {MANIFEST} is incomplete: {error}", "write the bundle again") from None


def usable(folder: Path, manifest: dict[str, Any]) -> tuple[Path, dict[str, Any]]:
    """The bundle in `folder`, or the fallback inside, with a warning, where the runtime of the first is not here."""
    if manifest.get("fallback") is True:
        try:
            runtime(str(manifest["runtime"]["name"]))
        except InvalidInput as error:
            warnings.warn(f"{error.cause}: the fallback of {folder.name} runs instead", stacklevel=3)
            folder = folder / FALLBACK
            manifest = read_manifest(folder)
    return folder, manifest


def read_study(path: Path) -> Study:
    """The study that the bundle at `path` carries as its evidence."""
    folder = read(path, trust=True).folder  # nothing of it is opened
    try:
        return Study.from_json(json.loads(inside(folder, "study.json").read_bytes()))
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        raise InvalidInput(f"{path}: study.json cannot be read: {error}", "write the bundle again") from None


def _folder(path: Path) -> Path:
    if not path.exists():
        raise InvalidInput(f"there is no bundle at {path}", "check the path")
    if not path.is_file():
        return path
    try:
        home = cache_dir() / "bundles" / digest(path)[:32]
        if home.exists():
            try:
                check_files(home, read_manifest(home))
                return home
            except HastenError:
                shutil.rmtree(home)  # an old copy that was changed since
        home.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=".part-", dir=home.parent))
        try:
            unpack(path, fresh)
            os.replace(fresh, home)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
        return home
    except OSError as error:
        raise Failed(f"cannot unpack {path}: {error.strerror or error}") from None
