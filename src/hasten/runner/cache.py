"""The response cache: an input that was seen before, or one close enough to it, gets the outputs computed then."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hasten.errors import InvalidInput
from hasten.runner.alike import Space, vectors

if TYPE_CHECKING:
    import numpy as np

    from hasten.model import Signature

    Sample = Mapping[str, np.ndarray]
    Outputs = dict[str, np.ndarray]


class Entry:
    """A place in the cache: reserved at the first sight of an input, filled when its outputs are there."""

    __slots__ = ("group", "outputs")

    def __init__(self, group: Hashable = None) -> None:
        self.outputs: dict[str, np.ndarray] | None = None
        self.group = group

    def fill(self, outputs: Mapping[str, np.ndarray]) -> None:
        """Keep copies: a sample's outputs may be views that hold a whole batch in memory."""
        self.outputs = {name: array.copy() for name, array in outputs.items()}

    def copy(self) -> dict[str, np.ndarray]:
        assert self.outputs is not None
        return {name: array.copy() for name, array in self.outputs.items()}


class ResponseCache:
    """The `entries` least recently forgotten inputs. `hits` of `lookups` were there, `similar` of them not the same.

    With a `distance`, an input that is as near as that to one whose outputs were computed gets those (`Space.nearest`).
    Where outputs are as large as their inputs (`sized`), only inputs of one shape are alike.
    """

    def __init__(self, entries: int, distance: float | None = None, sized: bool = False) -> None:
        self.entries, self.distance, self.sized = entries, distance, sized
        self.hits = self.similar = self.lookups = 0
        self._known: OrderedDict[Hashable, Entry] = OrderedDict()
        self._spaces: dict[Hashable, Space] = {}
        self._lock = threading.Lock()

    def look_up(self, sample: Mapping[str, np.ndarray]) -> tuple[Entry, bool]:
        """The sample's entry, and whether it was there; a new one is reserved, and the caller fills it.

        What is answered by a similar input leaves no entry: else answers would drift from like to like.
        """
        key: Hashable = identity(sample)
        with self._lock:
            self.lookups += 1
            if key in self._known:
                return self._hit(key), True
            if self.distance is None:
                return self._reserve(key), False
        group, vector = kind_of(sample, self.sized), vectors(sample)
        with self._lock:
            if key in self._known:  # another thread was quicker
                return self._hit(key), True
            space = self._spaces.get(group, Space())
            near, distance = space.nearest(vector)
            if distance <= self.distance:
                self.similar += 1
                return self._hit(near), True
            entry = self._reserve(key, group)
            self._spaces.setdefault(group, space).add(key, vector)
            return entry, False

    def clear(self) -> None:
        """Forget every input, and start counting anew."""
        with self._lock:
            self._known.clear()
            self._spaces.clear()
            self.hits = self.similar = self.lookups = 0

    def forget(self, entry: Entry) -> None:
        """Take back an entry whose outputs could not be computed."""
        with self._lock:
            for key in [key for key, known in self._known.items() if known is entry]:
                self._drop(key)

    def _hit(self, key: Hashable) -> Entry:
        self.hits += 1
        self._known.move_to_end(key)
        return self._known[key]

    def _reserve(self, key: Hashable, group: Hashable = None) -> Entry:
        if len(self._known) == self.entries:
            self._drop(next(iter(self._known)))
        entry = self._known[key] = Entry(group)
        return entry

    def _drop(self, key: Hashable) -> None:
        group = self._known.pop(key).group
        space = self._spaces.get(group)
        if space is not None:
            space.remove(key)
            if not len(space):
                del self._spaces[group]

    def through(self, samples: Sequence[Sample], run: Callable[[list[Sample]], list[Outputs]]) -> list[Outputs]:
        """The outputs of each sample, in order; `run` computes those that are not known."""
        looked_up = [self.look_up(sample) for sample in samples]
        missed = [i for i, (_, known) in enumerate(looked_up) if not known]
        try:
            computed = dict(zip(missed, run([samples[i] for i in missed]), strict=True))
        except BaseException:
            for i in missed:
                self.forget(looked_up[i][0])
            raise
        for i, outputs in computed.items():
            looked_up[i][0].fill(outputs)

        def known(entry: Entry, sample: Sample) -> Outputs:
            """Computed again where another thread has reserved it and not filled it yet."""
            return entry.copy() if entry.outputs is not None else run([sample])[0]

        return [computed[i] if i in computed else known(entry, samples[i]) for i, (entry, _) in enumerate(looked_up)]

    def reused(self) -> dict[str, tuple[int, int]]:
        """How many inputs were known, and how many of these only by a similar one, of how many, by figure."""
        found = {"cache_hit_rate": (self.hits, self.lookups)}
        return found if self.distance is None else {**found, "similar_rate": (self.similar, self.lookups)}


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


def kind_of(sample: Mapping[str, np.ndarray], sized: bool) -> Hashable:
    """What inputs must have in common to be alike at all; `sized` is the shape of all, and of texts the text itself."""
    found: list[Hashable] = []
    for name in sorted(sample):
        array = sample[name]
        text = array.dtype.kind in "OUS"
        sequence = text or (array.dtype.kind in "iu" and array.ndim <= 1)
        kind = "text" if text else array.dtype.str
        shape = array.ndim if sequence and not sized else array.shape
        found.append((name, kind, shape, repr(array.tolist()) if text and sized else ""))
    return tuple(found)


def as_large_as_inputs(signature: Signature) -> bool:
    """Whether an output may have another shape for another input: one whose axes, but for the first, are not fixed."""
    shapes = [tensor.shape for tensor in signature.outputs]
    return any(shape is None or any(not isinstance(size, int) for size in shape[1:]) for shape in shapes)


def from_recipe(cache: Mapping[str, Any], signature: Signature | None = None) -> ResponseCache | None:
    """Read `[cache]` of a recipe; an empty table is no cache. `signature` is the source model's."""
    if not cache:
        return None
    keys = ("kind", "entries", "distance")
    unknown = sorted(set(cache) - set(keys))
    if unknown:
        raise InvalidInput(f"[cache] has unknown keys: {', '.join(unknown)}", f"keys are: {', '.join(keys)}")
    kind, distance = cache.get("kind", "identity"), cache.get("distance")
    if kind not in ("identity", "semantic"):
        raise InvalidInput(f"[cache] kind = {kind!r} is not known", "use identity or semantic")
    entries = cache.get("entries", 1024)
    if not isinstance(entries, int) or isinstance(entries, bool) or entries < 1:
        raise InvalidInput(f"[cache] entries = {entries!r} makes no sense", "give a whole number from 1 up")
    if kind == "identity":
        if distance is not None:
            raise InvalidInput("[cache] distance is for similar inputs", 'use kind = "semantic", or leave it out')
        return ResponseCache(entries)
    if not isinstance(distance, int | float) or isinstance(distance, bool) or not 0 <= distance < 1:
        raise InvalidInput(f"[cache] distance = {distance!r} makes no sense", "give a number from 0 to below 1")
    return ResponseCache(entries, float(distance), signature is None or as_large_as_inputs(signature))


def of_decoder(cache: Mapping[str, Any]) -> ResponseCache | None:
    """The same for a model that decodes step by step, which knows inputs again that are the same."""
    found = from_recipe(cache)
    if found is not None and found.distance is not None:
        raise InvalidInput('[cache] kind = "semantic" is not for models that decode step by step', "use identity")
    return found
