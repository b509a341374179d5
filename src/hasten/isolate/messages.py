"""Messages between parent and worker: one line of JSON each.

Every non-ASCII character is escaped, so a message holds no newline but its last byte, and whatever else gets on the
channel spoils one line at most. NaN and the infinities are written as Python's json writes them, and survive.
"""

from __future__ import annotations

import json
from typing import Any

# A larger answer belongs in a file: parsed JSON can take twenty times its size, and the parent must stay small.
LARGEST_BYTES = 64 << 20


def encode(message: dict[str, Any]) -> bytes:
    """Raises `TypeError`, `ValueError` or `RecursionError` for what JSON cannot hold."""
    line = json.dumps(message, separators=(",", ":")).encode("ascii") + b"\n"
    if len(line) > LARGEST_BYTES:
        raise ValueError(f"a message of {len(line) >> 20} MiB is too large: hand files over by path")
    return line


class Decoder:
    """Takes bytes as they come and gives the messages that are complete; lines that are no message are dropped."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        messages = []
        *lines, rest = data.split(b"\n")
        for line in lines:
            if self._size + len(line) <= LARGEST_BYTES:
                message = _decode(b"".join([*self._pieces, line]))
                if message is not None:
                    messages.append(message)
            self._pieces, self._size = [], 0
        self._size += len(rest)
        if self._size > LARGEST_BYTES:
            self._pieces = []
        elif rest:
            self._pieces.append(rest)
        return messages


def _decode(line: bytes) -> dict[str, Any] | None:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None
