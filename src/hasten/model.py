"""A model: a handle on a file or folder with its signature, its content hash and its facts, never its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

Dim = int | str | None
"""A fixed size, a named dynamic axis, or an unnamed dynamic axis."""


@dataclass(frozen=True)
class Tensor:
    """One input or output. `dtype` is NumPy's name, or "string" or "bfloat16"; `shape` None means unknown rank."""

    name: str
    dtype: str
    shape: tuple[Dim, ...] | None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Tensor:
        shape = data["shape"]
        return cls(data["name"], data["dtype"], None if shape is None else tuple(shape))


@dataclass(frozen=True)
class Signature:
    """What goes in and what comes out, in the model's own order, batch axis included."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Signature:
        return cls(
            tuple(Tensor.from_json(t) for t in data["inputs"]), tuple(Tensor.from_json(t) for t in data["outputs"])
        )


@dataclass(frozen=True)
class Operator:
    """One node's arithmetic for given input shapes.

    `flops` counts a multiply-add as two; `bytes` is every input read once plus every output written once
    (weights included, and counted alone in `weight_bytes`), at the model's own precision.
    """

    name: str
    kind: str
    flops: int
    bytes: int
    weight_bytes: int = 0
    outputs: tuple[str, ...] = ()
    output_shape: tuple[int, ...] | None = None

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Operator:
        shape = data.get("output_shape")
        return cls(
            data["name"],
            data["kind"],
            data["flops"],
            data["bytes"],
            data.get("weight_bytes", 0),
            tuple(data.get("outputs", ())),
            None if shape is None else tuple(shape),
        )


@dataclass(frozen=True)
class Facts:
    """What can be said of a model without running it. `kinds` counts the nodes by operator type, subgraphs included."""

    parameters: int
    size_bytes: int
    opset: int | None = None
    producer: str = ""
    kinds: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Facts:
        return cls(**data)


@dataclass(frozen=True)
class Model:
    """A network in some format. `format` is onnx, openvino, pt2, torch, ctranslate2, gguf, ...

    `path` is the file that a runtime opens (the .xml of an OpenVINO pair); `sha256` covers every file that belongs
    to it, external data included.
    """

    path: Path
    format: str
    sha256: str
    signature: Signature
    facts: Facts

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"path": str(self.path)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Model:
        return cls(
            Path(data["path"]),
            data["format"],
            data["sha256"],
            Signature.from_json(data["signature"]),
            Facts.from_json(data["facts"]),
        )
