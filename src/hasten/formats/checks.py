"""Checks an ONNX model: names, opsets, shapes, where its weights lie, and the rules of ONNX itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hasten.errors import InvalidInput
from hasten.formats.dtypes import ONNX_NAMES, bits, nbytes
from hasten.formats.external import check_extent, external_file

OLDEST_OPSET = 7
MAX_ELEMENTS = 1 << 40
UNNAMED = -1
"""Paddle's exporter writes a dynamic dimension as -1 (PP-OCR's classifier does), and every runtime reads it so."""

ONNXRUNTIME_IN_ONNX = frozenset({"LayerNormalization", "SimplifiedLayerNormalization"})
"""ONNX Runtime's optimiser puts these into ONNX's own domain at opsets that do not have them, and reads them there."""

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


def check_names(path: Path, proto: Any, everything: Sequence[Any]) -> None:
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


def check_opsets(path: Path, proto: Any) -> int | None:
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
        imports[domain_of(entry.domain)] = max(entry.version, imports.get(domain_of(entry.domain), entry.version))
    if not proto.opset_import:
        imports[""] = 1
    local = {domain_of(function.domain) for function in proto.functions}
    for function in proto.functions:
        for entry in function.opset_import:
            imports.setdefault(domain_of(entry.domain), entry.version)
    used = {(domain_of(node.domain), node.op_type) for graph in graphs(proto) for node in graph.node}
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


def domain_of(name: str) -> str:
    return "" if name == "ai.onnx" else name


def check_values(path: Path, proto: Any, everything: Sequence[Any]) -> None:
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


def check_tensor(path: Path, tensor: Any, token: str, files: dict[str, Path]) -> None:
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


def standard(domain: str, kind: str, opset: int) -> bool:
    """Whether ONNX itself defines the operator at this opset."""
    import onnx

    try:
        onnx.defs.get_schema(kind, opset, domain)
    except Exception:  # onnx raises a class of its own that it does not export
        return False
    return True


def check_with_onnx(path: Path, proto: Any) -> None:
    """Run ONNX's own checker on a copy in which every tensor that is not inside is empty."""
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    opset = max((entry.version for entry in copy.opset_import if domain_of(entry.domain) == ""), default=0)
    if not any(entry.domain == "com.microsoft" for entry in copy.opset_import):
        copy.opset_import.add(domain="com.microsoft", version=1)
    for graph in graphs(copy):
        if any(sparse.values.external_data for sparse in getattr(graph, "sparse_initializer", ())):
            return
        for tensor in tensors(graph):
            if tensor.external_data:
                del tensor.external_data[:]
                tensor.ClearField("data_location")
                tensor.dims[:] = [0]
        for node in graph.node:
            if node.op_type in ONNXRUNTIME_IN_ONNX and not standard(domain_of(node.domain), node.op_type, opset):
                node.domain = "com.microsoft"
        for value in (*graph.input, *graph.output) if hasattr(graph, "initializer") else ():
            if value.type.HasField("tensor_type"):
                value.type.tensor_type.shape.SetInParent()  # a rank that is not known is fine with every runtime
    copy.ir_version = max(copy.ir_version, 4)  # older ones want initialisers among the inputs; no runtime cares
    try:
        onnx.checker.check_model(copy)
    except Exception as error:
        raise InvalidInput(
            f"{path.name} breaks ONNX's rules: {one_line(error)}", "export the model again, or repair its graph"
        ) from None


def one_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.startswith("==>")]
    return (lines[0] if lines else type(error).__name__)[:300]
