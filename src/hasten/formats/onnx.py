"""Reads an ONNX file: its signature, its facts and its hash, after checking that it is safe and whole."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hasten.errors import HastenError, InvalidInput
from hasten.formats.checks import (
    UNNAMED,
    check_names,
    check_opsets,
    check_tensor,
    check_values,
    check_with_onnx,
    domain_of,
    graphs,
    one_line,
    tensors,
)
from hasten.formats.dtypes import ONNX_NAMES, is_weight
from hasten.formats.skeleton import Skeleton, read_skeleton
from hasten.model import Dim, Facts, Model, Operator, Signature, Tensor


def inspect_onnx(path: Path) -> Model:
    """Read `path` in this process. Raises `InvalidInput` for whatever is wrong with it."""
    skeleton = read_skeleton(path)
    proto = parse(path, skeleton)
    try:
        return _inspect(path, proto, skeleton)
    except HastenError:
        raise
    except Exception as error:  # protobuf and the checker raise many kinds on files made to hurt
        raise _unreadable(path, error) from None


def operators_of(path: Path, shapes: Mapping[str, Sequence[int]]) -> tuple[Operator, ...]:
    """FLOPs and bytes of each node when the inputs have `shapes`, in this process; see `formats.walk`."""
    from hasten.formats.walk import walk

    skeleton = read_skeleton(path)
    proto = parse(path, skeleton)
    try:
        return walk(path, proto, shapes)
    except HastenError:
        raise
    except Exception as error:
        raise _unreadable(path, error) from None


def parse(path: Path, skeleton: Skeleton) -> Any:
    """The skeleton as a `ModelProto` that has a graph."""
    import onnx

    try:
        proto = onnx.ModelProto.FromString(skeleton.message)
    except Exception as error:
        raise _unreadable(path, error) from None
    if not proto.ir_version or not (proto.graph.node or proto.graph.output):
        raise InvalidInput(
            f"{path.name} is not an ONNX model: it has no graph", "pass a file that was exported to ONNX"
        )
    return proto


def _inspect(path: Path, proto: Any, skeleton: Skeleton) -> Model:
    everything = list(graphs(proto))
    check_names(path, proto, everything)
    opset = check_opsets(path, proto)
    if proto.training_info:
        raise InvalidInput(f"{path.name} holds training graphs, which hasten does not read",
                           "export the model for inference")  # fmt: skip
    check_values(path, proto, everything)
    files: dict[str, Path] = {}
    for graph in everything:
        for tensor in tensors(graph):
            check_tensor(path, tensor, skeleton.token, files)
    check_with_onnx(path, proto)
    signature = _signature(path, proto)
    sizes = [path.stat().st_size, *(file.stat().st_size for file in set(files.values()))]
    return Model(
        path=path.absolute(),
        format="onnx",
        sha256=_sha256(path, files),
        signature=signature,
        facts=Facts(
            parameters=sum(_parameters(graph) for graph in everything),
            size_bytes=sum(sizes),
            opset=opset,
            producer=f"{proto.producer_name} {proto.producer_version}".strip(),
            kinds=dict(sorted(Counter(node.op_type for graph in everything for node in graph.node).items())),
        ),
    )


def _unreadable(path: Path, error: Exception) -> InvalidInput:
    return InvalidInput(
        f"{path.name} is not a readable ONNX file: {one_line(error)}",
        "check that the file was copied in full, and export it again if it was",
    )


def _signature(path: Path, proto: Any) -> Signature:
    held = {tensor.name for tensor in proto.graph.initializer}
    held |= {sparse.values.name for sparse in proto.graph.sparse_initializer}
    return Signature(
        tuple(_tensor(path, value, "input") for value in proto.graph.input if value.name not in held),
        tuple(_tensor(path, value, "output") for value in proto.graph.output),
    )


def _tensor(path: Path, value: Any, role: str) -> Tensor:
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        what = "nothing" if kind is None else kind.removesuffix("_type").replace("_", " ")
        raise InvalidInput(
            f"{path.name}: the {role} {value.name!r} has the type {what}; hasten reads tensors only",
            "export the model so that its inputs and outputs are tensors (for scikit-learn: zipmap=False)",
        )
    tensor = value.type.tensor_type
    if tensor.elem_type not in ONNX_NAMES:
        raise InvalidInput(f"{path.name}: the {role} {value.name!r} has no known element type ({tensor.elem_type})",
                           "export the model again")  # fmt: skip
    shape = tuple(_dim(dim) for dim in tensor.shape.dim) if tensor.HasField("shape") else None
    return Tensor(value.name, ONNX_NAMES[tensor.elem_type], shape)


def _dim(dim: Any) -> Dim:
    if dim.HasField("dim_value") and dim.dim_value != UNNAMED:
        return int(dim.dim_value)
    return None if dim.dim_param in ("", "?") else str(dim.dim_param)


def _parameters(graph: Any) -> int:
    """Elements of weights: initialisers and `Constant` nodes, scalars left out (they are settings)."""
    held = list(getattr(graph, "initializer", ()))
    sparse = list(getattr(graph, "sparse_initializer", ()))
    total = 0
    for node in graph.node:
        if node.op_type == "Constant" and domain_of(node.domain) == "":
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    held.append(attribute.t)
                elif attribute.HasField("sparse_tensor"):
                    sparse.append(attribute.sparse_tensor)
                total += len(attribute.floats)
    for tensor in (*held, *(item.values for item in sparse)):
        if tensor.dims and is_weight(ONNX_NAMES[tensor.data_type]):
            count = 1
            for dim in tensor.dims:
                count *= dim
            total += count
    return total


def _sha256(path: Path, files: Mapping[str, Path]) -> str:
    """The file's own SHA-256; with external data, one over the digests of all files in order of location."""
    own = file_sha256(path)
    if not files:
        return own
    lines = [own, *(f"{location} {file_sha256(files[location])}" for location in sorted(files))]
    return hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
