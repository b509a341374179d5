"""Where hasten keeps what lasts (the store) and what may be deleted (built variants, samples, device limits)."""

from __future__ import annotations

import os
from pathlib import Path


def data_dir() -> Path:
    """`$XDG_DATA_HOME/hasten`, by default `~/.local/share/hasten`."""
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share").absolute() / "hasten"


def cache_dir() -> Path:
    """`$XDG_CACHE_HOME/hasten`, by default `~/.cache/hasten`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "hasten"
