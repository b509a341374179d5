"""How far apart inputs are: cheap vectors of fixed length, by feature hashing, and the nearest of those that are kept.

Feature hashing keeps inner products in expectation: Weinberger et al., Feature Hashing for Large Scale Multitask
Learning, 2009. Of large arrays it is a sparse random projection.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

WIDTH = 256
"""Numbers of a vector."""
TEXT_GRAMS, TOKEN_GRAMS = (3, 5), (1, 2)
"""So many bytes of a text, and so many tokens, are looked at together."""


def vectors(sample: Mapping[str, np.ndarray]) -> np.ndarray:
    """One row of `WIDTH` for each input, by name: float32 [inputs, WIDTH].

    Texts and rows of integers give how often each run of bytes or tokens occurs, scaled to length 1. Other arrays give
    their numbers as they are, or a projection of them where they are many.
    """
    import numpy as np

    rows = [_vector(np.asarray(sample[name])) for name in sorted(sample)]
    return np.array(rows, np.float32).reshape(len(rows), WIDTH)


def _vector(array: np.ndarray) -> np.ndarray:
    import numpy as np

    if array.dtype.kind in "OUS":
        text = "\n".join(map(str, array.reshape(-1).tolist()))
        return _counts(np.frombuffer(text.encode(), np.uint8), TEXT_GRAMS)
    if array.dtype.kind in "iu" and array.ndim <= 1:
        return _counts(array.reshape(-1), TOKEN_GRAMS)
    flat = array.reshape(-1).astype(np.float64)
    if flat.size <= WIDTH:
        return np.pad(flat, (0, WIDTH - flat.size))
    return _hashed(np.arange(flat.size, dtype=np.uint64), flat)


def _counts(values: np.ndarray, grams: tuple[int, ...]) -> np.ndarray:
    import numpy as np

    values = np.pad(values.astype(np.uint64) + np.uint64(1), 1)  # zeros mark the ends
    found = np.zeros(WIDTH)
    for length in grams:
        if len(values) >= length:
            codes = np.full(len(values) - length + 1, length, np.uint64)
            for at in range(length):
                codes = _mixed(codes + values[at : at + len(codes)])
            found += _hashed(codes, np.ones(len(codes)))
    size = float(np.sqrt(found @ found))
    return found / size if size else found


def _hashed(codes: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The sum of weights, with signs, by the place that each code falls on."""
    import numpy as np

    mixed = _mixed(codes)
    signs = np.where(mixed >> np.uint64(63), -1.0, 1.0)
    return np.bincount((mixed % np.uint64(WIDTH)).astype(np.int64), weights * signs, WIDTH)


def _mixed(codes: np.ndarray) -> np.ndarray:
    """Well-spread 64-bit numbers: the finaliser of SplitMix64 (Steele, Lea and Flood, 2014)."""
    import numpy as np

    codes = codes + np.uint64(0x9E3779B97F4A7C15)
    codes = (codes ^ (codes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    codes = (codes ^ (codes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = codes ^ (codes >> np.uint64(31))
    return mixed


class Space:
    """Vectors [inputs, WIDTH] by key, of which the nearest can be asked for."""

    def __init__(self) -> None:
        self._keys: list[Hashable] = []
        self._place: dict[Hashable, int] = {}
        self._rows: Any = None
        self._squares: Any = None

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, key: Hashable, vector: np.ndarray) -> None:
        import numpy as np

        place = len(self._keys)
        if self._rows is None:
            self._rows = np.zeros((8, *vector.shape), np.float32)
            self._squares = np.zeros((8, len(vector)), np.float32)
        elif place == len(self._rows):
            self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
            self._squares = np.concatenate([self._squares, np.zeros_like(self._squares)])
        self._keys.append(key)
        self._place[key] = place
        self._rows[place] = vector
        self._squares[place] = np.einsum("ij,ij->i", vector, vector)

    def remove(self, key: Hashable) -> None:
        """Forget a key, if it is here; the last one takes its place."""
        place = self._place.pop(key, None)
        if place is None:
            return
        last = self._keys.pop()
        if place < len(self._keys):
            end = len(self._keys)
            self._keys[place], self._place[last] = last, place
            self._rows[place], self._squares[place] = self._rows[end], self._squares[end]

    def nearest(self, vector: np.ndarray) -> tuple[Hashable, float]:
        """The nearest key and its distance (infinite where there is none).

        The distance of two inputs is that of the parts that differ most, each |a - b|² / (|a|² + |b|²): 0 for the same,
        1 for parts that have nothing in common, and 1 - cosine for vectors of one length.
        """
        import numpy as np

        count = len(self._keys)
        if not count:
            return None, float("inf")
        sizes = self._squares[:count] + np.einsum("ij,ij->i", vector, vector)
        with np.errstate(all="ignore"):
            inner = np.einsum("kij,ij->ki", self._rows[:count], vector)
            apart = np.where(sizes == 0, 0.0, 1 - 2 * inner / sizes).max(axis=1, initial=0.0)
        apart = np.where(np.isfinite(apart), apart, np.inf)
        place = int(apart.argmin())
        return self._keys[place], float(apart[place])
