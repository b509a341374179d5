"""Magika's file-type model, and the files of this Python installation as it reads them."""

from __future__ import annotations

import sysconfig
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.fetch import Pinned, fetch

if TYPE_CHECKING:
    import numpy as np

MODEL = Pinned(
    "magika",
    "1.0.3",
    "3e9b49134e8116ee40b431664dcbed9e199413efddcce1a173c734b4e0521529",
    "magika/models/standard_v3_3/model.onnx",
    "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
)
SIDE, BLOCK, PADDING = 1024, 4096, 256
EACH, FILES, SMALLEST = 60, 800, 64
"""At most so many files of one extension, and of all; smaller ones are left out."""


def model() -> Path:
    return fetch(MODEL)


def samples() -> Iterator[dict[str, np.ndarray]]:
    import numpy as np

    for path in files():
        yield {"bytes": np.array(features(path.read_bytes()), np.int32)}


def files() -> list[Path]:
    """Files of the standard library and of the installed packages, of as many kinds as there are."""
    kinds: dict[str, list[Path]] = defaultdict(list)
    for root in sorted({sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")}):
        for path in sorted(Path(root).rglob("*")):
            found = kinds[path.suffix.lower()]
            if len(found) < EACH and path.is_file() and SMALLEST <= path.stat().st_size < 2 << 20:
                found.append(path)
    mixed = [path for turn in range(EACH) for paths in kinds.values() for path in paths[turn : turn + 1]]
    return mixed[:FILES]


def features(content: bytes) -> list[int]:
    """The first and the last 1,024 bytes without white space at the ends, filled up with 256.

    >>> found = features(b"  ab ")
    >>> found[:3], found[-3:], len(found)
    ([97, 98, 256], [256, 97, 98], 2048)
    """
    first = list(content[:BLOCK].strip() if len(content) <= BLOCK else content[:BLOCK].lstrip())[:SIDE]
    last = list(content[-BLOCK:].strip() if len(content) <= BLOCK else content[-BLOCK:].rstrip())[-SIDE:]
    return first + [PADDING] * (2 * SIDE - len(first) - len(last)) + last
