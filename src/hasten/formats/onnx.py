"""Reads an ONNX file: its signature, its facts and its hash, after checking that it is safe and whole."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hasten.errors import HastenError, InvalidInput
from hasten.formats.dtypes import ONNX_NAMES, bits, is_weight, nbytes
from hasten.formats.external import check_extent, external_file
from hasten.formats.skeleton import Skeleton, read_skeleton
from hasten.model import Dim, Facts, Model, Operator, Signature, Tensor

OLDEST_OPSET = 7
MAX_ELEMENTS = 1 << 40
UNNAMED = -1
"""Paddle's exporter writes a dynamic dimension as -1 (PP-OCR's classifier does), and every runtime reads it so."""

KNOWN_DOMAINS = frozenset(
    {
        "",
        "ai.onnx",
        "ai.onnx.ml",
        "ai.onnx.preview",
        "ai.onnx.preview.training",
        "ai.onnx.training",
        "com.microsoft",
        "com.microsoft.nchwc",
        "com.microsoft.experimental",
        "com.ms.internal.nhwc",
        "org.pytorch.aten",
        "org.openvinotoolkit",
    }
)
"""Operator domains that ONNX itself, ONNX Runtime or OpenVINO define."""

_FIELD_BITS = {"float_data": 32, "double_data": 64}


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


def graphs(proto: Any) -> Iterator[Any]:
    """The main graph, the bodies of local functions, and every subgraph below them."""
    stack = [proto.graph, *proto.functions]
    while stack:
        graph = stack.pop()
        yield graph
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    stack.append(attribute.g)
                stack.extend(attribute.graphs)


def tensors(graph: Any) -> Iterator[Any]:
    """Every tensor held by `graph` itself: initialisers and tensor attributes, the parts of sparse ones too."""
    yield from getattr(graph, "initializer", ())
    sparse = list(getattr(graph, "sparse_initializer", ()))
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            if attribute.HasField("sparse_tensor"):
                sparse.append(attribute.sparse_tensor)
            sparse.extend(attribute.sparse_tensors)
    for item in sparse:
        yield item.values
        yield item.indices


def _inspect(path: Path, proto: Any, skeleton: Skeleton) -> Model:
    everything = list(graphs(proto))
    _check_names(path, proto, everything)
    opset = _check_opsets(path, proto)
    if proto.training_info:
        raise InvalidInput(f"{path.name} holds training graphs, which hasten does not read",
                           "export the model for inference")  # fmt: skip
    _check_values(path, proto, everything)
    files: dict[str, Path] = {}
    for graph in everything:
        for tensor in tensors(graph):
            _check_tensor(path, tensor, skeleton.token, files)
    _check_with_onnx(path, proto)
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


def _check_names(path: Path, proto: Any, everything: Sequence[Any]) -> None:
    """Protobuf gives text that is not UTF-8 as bytes; nothing after this expects them."""
    names: list[Any] = [proto.producer_name, proto.producer_version, *(entry.domain for entry in proto.opset_import)]
    for graph in everything:
        names += [item if isinstance(item, (str, bytes)) else item.name for item in (*graph.input, *graph.output)]
        names += [tensor.name for tensor in tensors(graph)]
        for node in graph.node:
            names += [node.op_type, node.domain, node.name, *node.input, *node.output]
    broken = next((name for name in names if not isinstance(name, str)), None)
    if broken is not None:
        raise InvalidInput(f"{path.name} has a name that is not UTF-8 text: {broken[:40]!r}", "export the model again")


def _check_opsets(path: Path, proto: Any) -> int | None:
    import onnx

    newest_ir, newest = onnx.IR_VERSION, onnx.defs.onnx_opset_version()
    if proto.ir_version > newest_ir:
        raise InvalidInput(
            f"{path.name} has IR version {proto.ir_version}; the installed onnx {onnx.__version__} reads up to "
            f"{newest_ir}",
            "export with an older onnx, or update it", "pip install -U onnx",
        )  # fmt: skip
    imports: dict[str, int] = {}
    for entry in proto.opset_import:
        imports[_domain(entry.domain)] = max(entry.version, imports.get(_domain(entry.domain), entry.version))
    if not proto.opset_import:
        imports[""] = 1
    local = {_domain(function.domain) for function in proto.functions}
    for function in proto.functions:
        for entry in function.opset_import:
            imports.setdefault(_domain(entry.domain), entry.version)
    used = {(_domain(node.domain), node.op_type) for graph in graphs(proto) for node in graph.node}
    for domain, kind in sorted(used):
        if domain not in KNOWN_DOMAINS and domain not in local:
            raise InvalidInput(
                f"{path.name} uses the operator {kind!r} of domain {domain!r}, which no runtime here knows",
                "export the model with standard ONNX operators",
            )
        if domain == "" and domain not in imports:
            raise InvalidInput(f"{path.name} does not say which opset it uses", "export the model again")
    opset = imports.get("")
    if opset is None:
        return None
    if opset < OLDEST_OPSET:
        raise InvalidInput(
            f"{path.name} uses opset {opset}; hasten reads opset {OLDEST_OPSET} to {newest}",
            "export it with a newer opset, for example 17, or convert it with onnx.version_converter",
        )
    if opset > newest:
        raise InvalidInput(
            f"{path.name} uses opset {opset}; the installed onnx {onnx.__version__} knows {OLDEST_OPSET} to {newest}",
            "export it with an older opset, for example 17, or update onnx",
            "pip install -U onnx",
        )
    return opset


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _check_values(path: Path, proto: Any, everything: Sequence[Any]) -> None:
    for graph in everything:
        for value in (*getattr(graph, "value_info", ()), *(graph.input if graph is proto.graph else ()),
                      *(graph.output if graph is proto.graph else ())):  # fmt: skip
            if value.type.HasField("tensor_type"):
                dims = [dim.dim_value for dim in value.type.tensor_type.shape.dim if dim.HasField("dim_value")]
                elements(path, value.name, [dim for dim in dims if dim != UNNAMED])
    known = {value.name for value in proto.graph.input} | {tensor.name for tensor in proto.graph.initializer}
    known |= {sparse.values.name for sparse in proto.graph.sparse_initializer}
    known |= {name for node in proto.graph.node for name in node.output}
    names = [value.name for value in proto.graph.output]
    for name in names:
        if name not in known:
            raise InvalidInput(f"{path.name}: nothing in the graph produces its output {name!r}",
                               "export the model again")  # fmt: skip
    for kind, values in (("input", [value.name for value in proto.graph.input]), ("output", names)):
        if len(set(values)) != len(values):
            raise InvalidInput(f"{path.name} has two {kind}s of the same name", "export the model again")
    if not names:
        raise InvalidInput(f"{path.name} has no outputs", "export the model again")


def elements(path: Path, name: str, dims: Sequence[int]) -> int:
    """The product of `dims`. Raises `InvalidInput` where it is absurd."""
    total = 1
    for dim in dims:
        if dim < 0:
            raise InvalidInput(
                f"{path.name}: {name!r} has a dimension of {dim}",
                "a dynamic dimension has a name or nothing in ONNX, never a negative size: export the model again",
            )
        total *= dim
    if max((total, *dims)) > MAX_ELEMENTS:
        raise InvalidInput(
            f"{path.name}: {name!r} has the shape {list(dims)}, more elements than any memory holds",
            "the file is damaged, or was made to do harm: export the model again",
        )
    return total


def _check_tensor(path: Path, tensor: Any, token: str, files: dict[str, Path]) -> None:
    name = tensor.name or "an unnamed tensor"
    if tensor.data_type not in ONNX_NAMES:
        raise InvalidInput(f"{path.name}: {name!r} has the element type {tensor.data_type}, which ONNX does not define",
                           "export the model again, or update onnx", "pip install -U onnx")  # fmt: skip
    dtype = ONNX_NAMES[tensor.data_type]
    count = elements(path, name, tensor.dims)
    needed = nbytes(dtype, count)
    entries = {entry.key: entry.value for entry in tensor.external_data}
    found: int | None = None
    if token in entries:
        field, _, size = entries[token].partition(":")
        if field == "raw_data":
            found = int(size)
        elif field in _FIELD_BITS:
            found, needed = int(size), count * max(_FIELD_BITS[field], bits(dtype)) // 8
    elif tensor.data_location == 1 or entries:
        location = entries.get("location", "")
        if location not in files:
            files[location] = external_file(path, location, name)
        if dtype == "string":
            raise InvalidInput(f"{path.name}: {name!r} keeps strings as external data, which ONNX does not allow",
                               "export the model again")  # fmt: skip
        check_extent(path, name, location, files[location].stat().st_size, entries, needed)
    elif tensor.HasField("raw_data"):
        found = len(tensor.raw_data)
    if found is not None and found != needed:
        raise InvalidInput(
            f"{path.name}: {name!r} has {found} bytes of data, but its type and shape "
            f"({dtype}{list(tensor.dims)}) need {needed}",
            "the file is damaged: copy or export it again",
        )


def _check_with_onnx(path: Path, proto: Any) -> None:
    """Run ONNX's own checker on a copy in which every tensor that is not inside is empty."""
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    for graph in graphs(copy):
        if any(sparse.values.external_data for sparse in getattr(graph, "sparse_initializer", ())):
            return
        for tensor in tensors(graph):
            if tensor.external_data:
                del tensor.external_data[:]
                tensor.ClearField("data_location")
                tensor.dims[:] = [0]
        for value in (*graph.input, *graph.output) if hasattr(graph, "initializer") else ():
            if value.type.HasField("tensor_type"):
                value.type.tensor_type.shape.SetInParent()  # a rank that is not known is fine with every runtime
    copy.ir_version = max(copy.ir_version, 4)  # older ones want initialisers among the inputs; no runtime cares
    try:
        onnx.checker.check_model(copy)
    except Exception as error:
        raise InvalidInput(
            f"{path.name} breaks ONNX's rules: {_one_line(error)}", "export the model again, or repair its graph"
        ) from None


def _one_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.startswith("==>")]
    return (lines[0] if lines else type(error).__name__)[:300]


def _unreadable(path: Path, error: Exception) -> InvalidInput:
    return InvalidInput(
        f"{path.name} is not a readable ONNX file: {_one_line(error)}",
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
        if node.op_type == "Constant" and _domain(node.domain) == "":
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
