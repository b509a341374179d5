"""Reads and writes the model files that levers edit, in a worker process."""

from __future__ import annotations

import copy
import heapq
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hasten.errors import Failed, InvalidInput
from hasten.model import Model
from hasten.recipe import Step
from hasten.variant import Variant

EXTERNAL_ABOVE_BYTES = 1_500_000_000
"""Protobuf stops at 2 GB; larger weights go into a file beside the model."""


def fresh_folder(workdir: Path, name: str) -> Path:
    """A new sub-folder of `workdir`: `01-name`, `02-name`, ..."""
    workdir.mkdir(parents=True, exist_ok=True)
    for number in range(1, 1000):
        folder = workdir / f"{number:02d}-{name}"
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        except OSError as error:
            raise Failed(
                f"cannot write {folder}: {error.strerror}", "free some space, or name another folder"
            ) from None
        return folder
    raise Failed(f"{workdir} holds a thousand variants", "empty it")


def part_of(variant: Variant, step: Step) -> Model:
    """The part that the step edits."""
    if step.part not in variant.parts:
        raise InvalidInput(
            f"lever {step.lever} names the part {step.part!r}, which this model does not have",
            f"use one of: {', '.join(sorted(variant.parts))}",
        )
    return variant.parts[step.part]


def options_of(step: Step, defaults: dict[str, Any]) -> dict[str, Any]:
    """The step's options over the defaults; an unknown option is an error."""
    unknown = sorted(set(step.options) - set(defaults))
    if unknown:
        raise InvalidInput(
            f"lever {step.lever} has no option {unknown[0]!r}", f"its options are: {', '.join(sorted(defaults))}"
        )
    return {**defaults, **step.options}


def need_onnx(model: Model, lever: str) -> None:
    if model.format != "onnx":
        raise InvalidInput(
            f"lever {lever} edits ONNX files, and the model is {model.format} by now",
            f"put {lever} before the step that changed the format",
        )


def load_onnx(path: Path) -> Any:
    """The ONNX model with every weight an initialiser and every node named, so that patterns can name them."""
    import onnx

    return named(with_initialisers(onnx.load(str(path))))


def save_onnx(proto: Any, path: Path) -> Path:
    import onnx

    if weight_bytes(proto) > EXTERNAL_ABOVE_BYTES:
        onnx.save(proto, str(path), save_as_external_data=True, location=path.name + ".data")
    else:
        onnx.save(proto, str(path))
    return path


def weight_bytes(proto: Any) -> int:
    """The bytes of the main graph's weights: protobuf cannot tell the size of a message over 2 GB."""
    from onnx.helper import tensor_dtype_to_np_dtype

    return sum(math.prod(t.dims) * tensor_dtype_to_np_dtype(t.data_type).itemsize for t in proto.graph.initializer)


def with_initialisers(proto: Any) -> Any:
    """Turn `Constant` nodes of the main graph into initialisers: the quantisers look for weights only there."""
    from onnx import numpy_helper

    kept = []
    for node in proto.graph.node:
        values = {a.name: a for a in node.attribute} if node.op_type == "Constant" else {}
        if "value" in values:
            tensor = proto.graph.initializer.add()
            tensor.CopyFrom(values["value"].t)
            tensor.name = node.output[0]
        elif "value_float" in values or "value_floats" in values or "value_int" in values or "value_ints" in values:
            import numpy as np

            attribute = next(iter(values.values()))
            dtype = np.float32 if attribute.name.startswith("value_float") else np.int64
            value = {"value_float": attribute.f, "value_int": attribute.i}.get(attribute.name)
            array = np.array(list(attribute.floats or attribute.ints) if value is None else value, dtype=dtype)
            proto.graph.initializer.append(numpy_helper.from_array(array, node.output[0]))
        else:
            kept.append(node)
    outputs = {output.name for output in proto.graph.output}
    if len(kept) < len(proto.graph.node) and not any(t.name in outputs for t in proto.graph.initializer):
        del proto.graph.node[:]
        proto.graph.node.extend(kept)
    return proto


def named(proto: Any) -> Any:
    """Name every unnamed node after its first output, which is unique."""
    seen: set[str] = set()
    for node in proto.graph.node:
        if not node.name or node.name in seen:
            node.name = node.output[0]
        seen.add(node.name)
    return proto


def in_order(proto: Any) -> bool:
    """Sort the main graph's nodes, in place, so that each follows what it reads, itself or in a branch.

    Whether anything had to move: quantisers put what a branch reads after the node with the branch.
    """
    nodes = list(proto.graph.node)
    makers = {output: at for at, node in enumerate(nodes) for output in node.output}
    before = [{makers[name] for name in read(node) if name in makers} for node in nodes]
    after: dict[int, list[int]] = {}
    for at, needed in enumerate(before):
        for each in needed:
            after.setdefault(each, []).append(at)
    left = [len(needed) for needed in before]
    ready = [at for at, count in enumerate(left) if not count]  # ascending, and so a heap
    order = []
    while ready:
        at = heapq.heappop(ready)
        order.append(at)
        for each in after.get(at, ()):
            left[each] -= 1
            if not left[each]:
                heapq.heappush(ready, each)
    if len(order) < len(nodes):
        raise Failed("the graph runs in a circle", "export the model again")
    if order == list(range(len(nodes))):
        return False
    copies = [copy.deepcopy(nodes[at]) for at in order]
    del proto.graph.node[:]
    proto.graph.node.extend(copies)
    return True


def read(node: Any) -> set[str]:
    """The names that a node reads, and those that its branches read."""
    names = set(node.input)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                names |= read(inner)
            names |= {output.name for output in graph.output}
    return names


def read_openvino(model: Model) -> Any:
    """The model as OpenVINO reads it, from ONNX or from its own files."""
    import openvino as ov

    if model.format not in ("onnx", "openvino"):
        raise InvalidInput(f"OpenVINO does not read {model.format} models")
    try:
        return ov.Core().read_model(str(model.path))
    except RuntimeError as error:
        raise Failed(f"OpenVINO cannot read {model.path.name}: {_first_line(error)}") from None


def save_openvino(model: Any, path: Path) -> Path:
    """Write the .xml and .bin pair without turning fp32 weights into fp16."""
    import openvino as ov

    ov.save_model(model, str(path), compress_to_fp16=False)
    return path


def same_signature(before: Model, after: Model, lever: str, dropped: Sequence[str] = ()) -> Model:
    """`after`, once it has the inputs and outputs of `before`: a lever may not change what the caller sees.

    `dropped` are outputs that it was asked to leave out.
    """
    for kind in ("inputs", "outputs"):
        old = [(t.name, t.dtype) for t in getattr(before.signature, kind) if kind == "inputs" or t.name not in dropped]
        new = [(t.name, t.dtype) for t in getattr(after.signature, kind)]
        if old != new:
            raise Failed(f"lever {lever} changed the model's {kind} from {old} to {new}")
    return after


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:200]


def is_constant(node: Any) -> bool:
    """Whether nothing above an OpenVINO `node` depends on an input."""
    if node.get_type_name() == "Constant":
        return True
    if node.get_type_name() in ("Parameter", "ReadValue", "ShapeOf") or not node.get_input_size():
        return False
    return all(is_constant(value.get_node()) for value in node.input_values())
