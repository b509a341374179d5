"""Reads an OpenVINO model (.xml with its .bin): its signature, facts and hash, and the arithmetic of its operators."""

from __future__ import annotations

import hashlib
import mmap
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.errors import InvalidInput
from hasten.formats.arithmetic import Known, flops, traffic
from hasten.formats.checks import elements
from hasten.formats.dtypes import OPENVINO_NAMES, is_weight, nbytes
from hasten.formats.onnx import file_sha256
from hasten.model import Dim, Facts, Model, Operator, Signature, Tensor

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

_MAX_XML_BYTES = 512 << 20

_ONNX_KINDS = {
    "Convolution": "Conv", "GroupConvolution": "Conv", "ConvolutionBackpropData": "ConvTranspose",
    "GroupConvolutionBackpropData": "ConvTranspose", "Multiply": "Mul", "Subtract": "Sub", "Divide": "Div",
    "Power": "Pow", "ReLU": "Relu", "Clamp": "Clip", "SoftMax": "Softmax", "MVN": "LayerNormalization",
    "RMS": "RMSNormalization", "NormalizeL2": "LpNormalization", "Select": "Where", "Maximum": "Max", "Minimum": "Min",
    "FakeQuantize": "DynamicQuantizeLinear", "AvgPool": "AveragePool", "HSwish": "HardSwish", "PReLU": "PRelu",
    "SquaredDifference": "Swish", "LSTMSequence": "LSTM", "GRUSequence": "GRU", "RNNSequence": "RNN",
    "ScaledDotProductAttention": "Attention", "ReduceLogicalAnd": "ReduceMin", "ReduceLogicalOr": "ReduceMax",
    "Interpolate": "Resize",
    "BatchNormInference": "BatchNormalization",
    "LogicalAnd": "And",
    "LogicalOr": "Or",
    "LogicalNot": "Not",
    "GreaterEqual": "GreaterOrEqual",
    "LessEqual": "LessOrEqual", "SoftPlus": "Softplus",
}  # fmt: skip
"""OpenVINO's operators whose arithmetic is that of an ONNX operator of another name."""

_VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "ShapeOf", "Parameter", "Result", "Constant"})


def inspect_openvino(path: Path) -> Model:
    """Read `path` in this process, without OpenVINO. Raises `InvalidInput` for whatever is wrong with it."""
    root = _parse(path)
    layers = root.findall("layers/layer")
    data = path.with_suffix(".bin")
    constants = [layer for layer in root.iter("layer") if layer.get("type") == "Const"]
    size = data.stat().st_size if data.is_file() else None
    parameters = 0
    for layer in constants:
        parameters += _check_constant(path, layer, size)
    files = [path] + ([data] if size is not None else [])
    runtime = root.find("rt_info/*[@name='OpenVINO Runtime']")
    version = (runtime.get("value", "") if runtime is not None else "").split("-")[0]
    kinds = Counter(layer.get("type", "") for layer in root.iter("layer"))
    for kind in ("Parameter", "Result", "Const"):
        kinds.pop(kind, None)
    signature = Signature(
        tuple(_input(path, layer) for layer in layers if layer.get("type") == "Parameter"), _outputs(path, root, layers)
    )
    if not signature.outputs:
        raise InvalidInput(f"{path.name} has no outputs", "convert the model again")
    return Model(
        path=path.absolute(),
        format="openvino",
        sha256=hashlib.sha256("\n".join(file_sha256(file) for file in files).encode()).hexdigest(),
        signature=signature,
        facts=Facts(
            parameters,
            sum(file.stat().st_size for file in files),
            None,
            f"OpenVINO {version}".strip(),
            dict(sorted(kinds.items())),
        ),
    )


def operators_of(path: Path, shapes: Mapping[str, Sequence[int]]) -> tuple[Operator, ...]:
    """FLOPs and bytes of each operator when the inputs have `shapes`, by OpenVINO's own shape inference."""
    import openvino

    try:
        model = openvino.Core().read_model(path)
        model.reshape({name: openvino.PartialShape(list(map(int, shape))) for name, shape in shapes.items()})
    except Exception as error:  # OpenVINO's exceptions are RuntimeErrors of many lines
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise InvalidInput(
            f"{path.name} cannot take the shapes { ({name: list(shape) for name, shape in shapes.items()}) }: "
            f"{lines[-1] if lines else error}",
            "give shapes that fit the model's signature",
        ) from None
    return tuple(
        _operator(node)
        for node in model.get_ordered_ops()
        if node.get_type_name() not in ("Parameter", "Result", "Constant")
    )


def _operator(node: Any) -> Operator:
    inputs = [
        _known(source.get_source_output(), source.get_source_output().get_node().get_type_name() == "Constant")
        for source in node.inputs()
    ]
    outputs = [_known(output, False) for output in node.outputs()]
    kind = node.get_type_name()
    attributes = node.get_attributes()
    read, weights = (0, 0) if kind in _VIEWS else traffic(kind, inputs, outputs)
    names = sorted(name for output in node.outputs() for name in output.get_names())
    return Operator(
        node.get_friendly_name(),
        kind,
        _flops(kind, attributes, inputs, outputs),
        read,
        weights,
        tuple(names),
        outputs[0].shape if outputs else None,
    )


def _flops(kind: str, attributes: Mapping[str, Any], inputs: list[Known], outputs: list[Known]) -> int:
    settings = {
        "kernel_shape": tuple(attributes.get("kernel", ())),
        "mode": str(attributes.get("mode", "")).removesuffix("_onnx"),
        "transA": attributes.get("transpose_a", False),
        "transB": attributes.get("transpose_b", False),
    }
    if kind.startswith("GroupConv") and inputs[1].shape:  # the weight has a leading axis of groups
        inputs = [inputs[0], Known(inputs[1].dtype, inputs[1].shape[1:])]
    elif kind.startswith("Convolution"):
        inputs = inputs[:2]
    if kind == "ScaledDotProductAttention":
        inputs = inputs[:3]
    if kind == "MatMul":
        kind = "FusedMatMul"
    return flops(_ONNX_KINDS.get(kind, kind), settings, inputs, outputs)


def _known(output: Any, constant: bool) -> Known:
    shape = output.get_partial_shape()
    return Known(
        OPENVINO_NAMES.get(output.get_element_type().get_type_name()),
        tuple(shape.to_shape()) if shape.is_static else None,
        None,
        constant,
    )


def _parse(path: Path) -> Element:
    from xml.etree import ElementTree

    broken = InvalidInput(f"{path.name} is not an OpenVINO model", "pass the .xml of a model that OpenVINO saved")
    if path.stat().st_size > _MAX_XML_BYTES:
        raise broken
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        if mapped.find(b"<!DOCTYPE") >= 0 or mapped.find(b"<!ENTITY") >= 0:
            raise broken  # OpenVINO writes neither, and entities can grow without bound
    try:
        root = ElementTree.parse(path).getroot()
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise InvalidInput(
            f"{path.name} is not readable XML: {error}", "check that the file was copied in full, or convert it again"
        ) from None
    if root.tag != "net" or root.find("layers") is None:
        raise broken
    if root.get("version") not in ("10", "11"):
        raise InvalidInput(
            f"{path.name} has IR version {root.get('version')}; hasten reads 10 and 11", "convert the model again"
        )
    return root


def _check_constant(path: Path, layer: Element, size: int | None) -> int:
    """Check that a constant lies within the .bin; its elements if it counts as a weight."""
    found = layer.find("data")
    name = layer.get("name", "?")
    if found is None:
        return 0
    try:
        shape = [int(dim) for dim in found.get("shape", "").split(",") if dim.strip()]
        offset, length = int(found.get("offset", "0")), int(found.get("size", "0"))
    except ValueError:
        raise InvalidInput(f"{path.name}: the constant {name!r} is damaged", "convert the model again") from None
    count = elements(path, name, shape)
    dtype = OPENVINO_NAMES.get(found.get("element_type", ""), "")
    if size is None:
        raise InvalidInput(f"{path.with_suffix('.bin').name}, which holds the weights of {path.name}, is missing",
                           "copy it beside the .xml")  # fmt: skip
    if offset < 0 or length < 0 or offset + length > size:
        raise InvalidInput(
            f"{path.name}: the constant {name!r} needs bytes {offset} to {offset + length} of the .bin, "
            f"which has {size}",
            "the .bin is truncated or belongs to another model: copy it again",
        )
    if dtype != "string" and length != nbytes(dtype, count) and dtype:
        raise InvalidInput(f"{path.name}: the constant {name!r} has {length} bytes, its shape and type need "
                           f"{nbytes(dtype, count)}", "the file is damaged: convert the model again")  # fmt: skip
    return count if shape and is_weight(dtype) else 0


def _input(path: Path, layer: Element) -> Tensor:
    data = layer.find("data")
    port = layer.find("output/port")
    if data is None or port is None:
        raise InvalidInput(f"{path.name}: the input {layer.get('name')!r} is damaged", "convert the model again")
    text = data.get("shape")
    shape = None if text is None or "..." in text else tuple(_dim(part) for part in text.split(",") if part.strip())
    elements(path, layer.get("name", "?"), [dim for dim in shape or () if isinstance(dim, int)])
    dtype = OPENVINO_NAMES.get(data.get("element_type", ""), "")
    return Tensor(_name(port.get("names"), layer), dtype, shape)


def _dim(text: str) -> Dim:
    """A size; `?` and ranges such as `1..64` are dynamic."""
    text = text.strip()
    return int(text) if text.lstrip("-").isdigit() and int(text) != -1 else None


def _outputs(path: Path, root: Element, layers: Sequence[Element]) -> tuple[Tensor, ...]:
    sources = {
        edge.get("to-layer"): (edge.get("from-layer"), edge.get("from-port")) for edge in root.findall("edges/edge")
    }
    by_id = {layer.get("id"): layer for layer in layers}
    found = []
    for layer in layers:
        if layer.get("type") != "Result":
            continue
        source, number = sources.get(layer.get("id"), (None, None))
        producer = by_id.get(source)
        port = next(
            (
                port
                for port in (producer.findall("output/port") if producer is not None else ())
                if port.get("id") == number
            ),
            None,
        )
        if producer is None or port is None:
            raise InvalidInput(f"{path.name}: nothing produces the output {layer.get('name')!r}", "convert it again")
        dims = tuple(None if (dim.text or "").strip() == "-1" else _dim(dim.text or "") for dim in port.findall("dim"))
        precision = port.get("precision", "").lower().replace("fp", "f")
        dtype = OPENVINO_NAMES.get({"bool": "boolean"}.get(precision, precision), precision)
        found.append(Tensor(_name(layer.get("output_names") or port.get("names"), producer), dtype, dims))
    return tuple(found)


def _name(names: str | None, layer: Element) -> str:
    """OpenVINO's own choice among several names of one tensor: the first in alphabetical order."""
    parts = [part for part in (names or "").replace("\\,", "\0").split(",") if part]
    return min(parts).replace("\0", ",") if parts else layer.get("name", "?")
