"""Copies an ONNX file without its weights, from the wire format, so that a model of any size costs little memory.

A protobuf parser holds a whole message in memory and refuses one over 2 GB. Here the file is mapped, lengths are
followed, and the payload of every tensor above `KEEP_BYTES` is skipped: its pages are never read. What is left is a
small, ordinary `ModelProto` in which such a tensor keeps its name, type and dims and carries one `external_data` entry,
keyed by a token that is drawn anew for each file (so that no file can forge it), saying how many bytes were there.
"""

from __future__ import annotations

import mmap
import secrets
from dataclasses import dataclass
from pathlib import Path

from hasten.errors import InvalidInput

KEEP_BYTES = 4096
"""Messages up to this size are copied whole: shapes, axes and scales stay readable."""

MAX_KEPT_BYTES = 1 << 30
MAX_DEPTH = 60

_CHILDREN: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
}
"""Field numbers of onnx.proto that lead to tensors, by message."""

_PAYLOAD = {4: "float_data", 5: "int32_data", 6: "string_data", 7: "int64_data", 9: "raw_data", 10: "double_data",
            11: "uint64_data"}  # fmt: skip
_EXTERNAL_DATA, _DATA_LOCATION = 13, 14


@dataclass(frozen=True)
class Skeleton:
    """`message` is a serialised `ModelProto`; `token` keys the entries that stand for dropped payloads."""

    message: bytes
    token: str


class _Scanner:
    def __init__(self, view: memoryview, token: str) -> None:
        self.view, self.token, self.kept = view, token, 0

    def varint(self, at: int, end: int) -> tuple[int, int]:
        value = shift = 0
        while at < end:
            byte = self.view[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at
            shift += 7
            if shift > 63:
                raise _Malformed("a number runs on for more than ten bytes")
        raise _Malformed("the file ends in the middle of a number: it is truncated")

    def keep(self, start: int, end: int) -> bytes:
        self.kept += end - start
        if self.kept > MAX_KEPT_BYTES:
            raise _Malformed("more than 1 GB of it is graph rather than weights")
        return bytes(self.view[start:end])

    def copy(self, start: int, end: int, kind: str, depth: int = 0) -> bytes:
        """The message between `start` and `end` without large tensor payloads."""
        if end - start <= KEEP_BYTES and kind != "model":
            return self.keep(start, end)
        if depth > MAX_DEPTH:
            raise _Malformed(f"graphs are nested more than {MAX_DEPTH} deep")
        children = _CHILDREN.get(kind, {})
        parts: list[bytes] = []
        dropped: dict[int, int] = {}
        external = False
        at = start
        while at < end:
            field_start = at
            tag, at = self.varint(at, end)
            number, wire = tag >> 3, tag & 7
            if number == 0:
                raise _Malformed("a field has the number 0")
            value = 0
            if wire == 0:
                value, at = self.varint(at, end)
                body = at
            elif wire == 1:
                body, at = at, at + 8
            elif wire == 5:
                body, at = at, at + 4
            elif wire == 2:
                length, body = self.varint(at, end)
                at = body + length
            else:
                raise _Malformed(f"a field has the wire type {wire}, which ONNX does not use")
            if at > end:
                raise _Malformed(f"a field needs {at - end} bytes more than there are: it is truncated")
            if kind == "tensor":
                if number in _PAYLOAD:
                    dropped[number] = dropped.get(number, 0) + at - body
                    continue
                # a location that is written down may still say "in this file": onnx does so once it read external data
                external = external or number == _EXTERNAL_DATA or (number == _DATA_LOCATION and value != 0)
            elif wire == 2 and number in children:
                child = self.copy(body, at, children[number], depth + 1)
                parts += (_encode(number << 3 | 2), _encode(len(child)), child)
                continue
            parts.append(self.keep(field_start, at))
        if dropped:
            if len(dropped) > 1 or external:
                raise _Malformed("a tensor has its data in more than one place")
            ((number, size),) = dropped.items()
            entry = _text(1, self.token) + _text(2, f"{_PAYLOAD[number]}:{size}")
            parts += (_bytes(_EXTERNAL_DATA, entry), _encode(_DATA_LOCATION << 3), b"\x01")
        return b"".join(parts)


class _Malformed(Exception):
    pass


def _encode(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _bytes(number: int, content: bytes) -> bytes:
    return _encode(number << 3 | 2) + _encode(len(content)) + content


def _text(number: int, content: str) -> bytes:
    return _bytes(number, content.encode())


def read_skeleton(path: Path) -> Skeleton:
    """Read `path` without its weights. Raises `InvalidInput` where the wire format is broken."""
    token = "hasten-" + secrets.token_hex(8)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        view = memoryview(mapped)
        try:
            return Skeleton(_Scanner(view, token).copy(0, len(view), "model"), token)
        except _Malformed as error:
            raise InvalidInput(
                f"{path.name} is not a readable ONNX file: {error}",
                "check that the file was copied in full, and export it again if it was",
            ) from None
        finally:
            view.release()
