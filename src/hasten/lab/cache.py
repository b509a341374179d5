"""Bounds the room that built variants take: knows what was used when, and deletes what was used longest ago."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Collection
from pathlib import Path

from hasten.lab.database import Database

TABLE = """CREATE TABLE IF NOT EXISTS hasten_variants (
    key TEXT PRIMARY KEY, path TEXT NOT NULL, size_bytes BIGINT NOT NULL, last_used DOUBLE PRECISION NOT NULL)"""

GRACE_S = 3600.0
"""What was used this recently may be in use by another study, and stays."""


class VariantCache:
    """An index, beside them in `folder`, of folders named by the hash of what made them.

    It is no part of the store, which machines may share. A folder that disappears behind its back is a miss, not an
    error. `clock` gives Unix time.
    """

    def __init__(self, folder: Path, limit_bytes: int, clock: Callable[[], float] = time.time) -> None:
        self.folder, self.limit_bytes = folder, limit_bytes
        self._database, self._clock = Database(folder / "index.db", (TABLE,)), clock

    def find(self, key: str) -> Path | None:
        """The folder of `key`, now used last, or None."""
        with self._database.transaction() as run:
            row = run("SELECT path FROM hasten_variants WHERE key = :key", key=key).first()
            if row is None:
                return None
            if Path(row[0]).exists():
                run("UPDATE hasten_variants SET last_used = :now WHERE key = :key", key=key, now=self._clock())
                return Path(row[0])
            run("DELETE FROM hasten_variants WHERE key = :key", key=key)
        return None

    def add(self, key: str, path: Path | None = None, keep: Collection[str] = ()) -> Path:
        """Index the finished folder (or file) of `key`, by default the one of that name; then evict, but not `keep`."""
        path = (self.folder / key if path is None else path).absolute()
        with self._database.transaction() as run:
            run(
                """INSERT INTO hasten_variants (key, path, size_bytes, last_used) VALUES (:key, :path, :size, :now)
                ON CONFLICT (key) DO UPDATE SET path = excluded.path, size_bytes = excluded.size_bytes,
                last_used = excluded.last_used""",
                key=key,
                path=str(path),
                size=_size_bytes(path),
                now=self._clock(),
            )
        self.evict(keep=(key, *keep))
        return path

    def keys(self) -> frozenset[str]:
        with self._database.transaction(write=False) as run:
            return frozenset(row[0] for row in run("SELECT key FROM hasten_variants"))

    @property
    def size_bytes(self) -> int:
        with self._database.transaction(write=False) as run:
            return int(run("SELECT coalesce(sum(size_bytes), 0) FROM hasten_variants").scalar_one())

    def evict(self, keep: Collection[str] = (), grace_s: float = GRACE_S) -> tuple[str, ...]:
        """Delete what was used longest ago until the rest fits; never `keep`, nor what was used within `grace_s`.

        The index forgets a folder before the folder goes, so that a kill in between leaves no promise unkept.
        """
        removed: list[tuple[str, str]] = []
        with self._database.transaction() as run:
            rows = run("SELECT key, path, size_bytes, last_used FROM hasten_variants ORDER BY last_used, key").all()
            total, before = sum(row[2] for row in rows), self._clock() - grace_s
            for key, path, size, last_used in rows:
                if total <= self.limit_bytes:
                    break
                if key not in keep and last_used <= before:
                    run("DELETE FROM hasten_variants WHERE key = :key", key=key)
                    removed.append((key, path))
                    total -= size
        for _, path in removed:
            if Path(path).is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                Path(path).unlink(missing_ok=True)
        return tuple(key for key, _ in removed)


def _size_bytes(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(file.lstat().st_size for file in path.rglob("*") if not file.is_dir())
