"""The response cache: the same input bytes get the outputs that were computed for them before."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hasten.errors import InvalidInput

if TYPE_CHECKING:
    import numpy as np


class Entry:
    """A place in the cache: reserved at the first sight of an input, filled when its outputs are there."""

    __slots__ = ("outputs",)

    def __init__(self) -> None:
        self.outputs: dict[str, np.ndarray] | None = None

    def fill(self, outputs: Mapping[str, np.ndarray]) -> None:
        """Keep copies: a sample's outputs may be views that hold a whole batch in memory."""
        self.outputs = {name: array.copy() for name, array in outputs.items()}

    def copy(self) -> dict[str, np.ndarray]:
        assert self.outputs is not None
        return {name: array.copy() for name, array in self.outputs.items()}


class ResponseCache:
    """The `entries` least recently forgotten inputs. `hits` of `lookups` were there."""

    def __init__(self, entries: int) -> None:
        self.entries, self.hits, self.lookups = entries, 0, 0
        self._known: OrderedDict[bytes, Entry] = OrderedDict()
        self._lock = threading.Lock()

    def look_up(self, sample: Mapping[str, np.ndarray]) -> tuple[Entry, bool]:
        """The sample's entry, and whether it was there; a new one is reserved, and the caller fills it."""
        key = identity(sample)
        with self._lock:
            self.lookups += 1
            entry = self._known.get(key)
            if entry is not None:
                self.hits += 1
                self._known.move_to_end(key)
                return entry, True
            entry = self._known[key] = Entry()
            if len(self._known) > self.entries:
                self._known.popitem(last=False)
            return entry, False

    def clear(self) -> None:
        """Forget every input, and start counting anew."""
        with self._lock:
            self._known.clear()
            self.hits = self.lookups = 0

    def forget(self, entry: Entry) -> None:
        """Take back an entry whose outputs could not be computed."""
        with self._lock:
            for key in [key for key, known in self._known.items() if known is entry]:
                del self._known[key]


def identity(sample: Mapping[str, np.ndarray]) -> bytes:
    """A digest of names, types, shapes and bytes of the inputs."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(sample):
        array = sample[name]
        if array.dtype.kind in "OUS":
            digest.update(repr((name, array.shape, array.tolist())).encode())
        else:
            digest.update(f"{name}|{array.dtype.str}|{array.shape}|".encode())
            digest.update(array.data if array.flags.c_contiguous else array.tobytes())
    return digest.digest()


def from_recipe(cache: Mapping[str, Any]) -> ResponseCache | None:
    """Read `[cache]` of a recipe; an empty table is no cache."""
    if not cache:
        return None
    unknown = sorted(set(cache) - {"kind", "entries"})
    if unknown:
        raise InvalidInput(f"[cache] has unknown keys: {', '.join(unknown)}", "keys are: kind, entries")
    if cache.get("kind", "identity") != "identity":
        raise InvalidInput(f"[cache] kind = {cache['kind']!r} is not known", "use identity")
    entries = cache.get("entries", 1024)
    if not isinstance(entries, int) or isinstance(entries, bool) or entries < 1:
        raise InvalidInput(f"[cache] entries = {entries!r} makes no sense", "give a whole number from 1 up")
    return ResponseCache(entries)
