"""Walks an ONNX graph with concrete input shapes and counts each node's arithmetic.

Every node's outputs are inferred from the shapes and, where they are small and known, the values of its inputs: the
arithmetic on shapes that exporters leave in graphs is evaluated on the way, which ONNX's whole-graph inference does for
a few operators only. Where a shape stays unknown, the graph's own annotation fills in, with its named axes replaced by
the sizes that the inputs gave them; failing that the node is listed with no operations and the bytes of what is known.

`If` takes the branch that its condition selects, or the costlier one where that is unknown. A `Loop` whose count is
unknown counts once. Local functions are inlined first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hasten.errors import InvalidInput
from hasten.formats.arithmetic import Known, flops, traffic
from hasten.formats.checks import ONNXRUNTIME_IN_ONNX, standard
from hasten.formats.contrib import as_standard, infer_contrib, settings_of
from hasten.formats.dtypes import ONNX_NAMES
from hasten.model import Operator

_SMALL = 1 << 14
"""Values of more elements are not followed."""

_FOLDED = frozenset(
    kind
    for kinds in (
        "Identity Gather Concat Add Sub Mul Div Mod Neg Abs Cast Slice Unsqueeze Squeeze Reshape Floor Ceil Round Min",
        "Max Equal Less LessOrEqual Greater GreaterOrEqual Where Not And Or ReduceProd ReduceSum ReduceMax ReduceMin",
        "Range ConstantOfShape Expand Sqrt Pow Transpose Flatten Split NonZero CumSum Tile GatherND ScatterND",
    )
    for kind in kinds.split()
)
"""What exporters build shapes from."""

_ONNX_NUMBERS = {name: number for number, name in ONNX_NAMES.items()}


def walk(path: Path, proto: Any, shapes: Mapping[str, Sequence[int]]) -> tuple[Operator, ...]:
    """Each node of the model `proto` in order, when its inputs have `shapes`. `path` is for messages only."""
    from onnx import inliner

    if proto.functions:
        proto = inliner.inline_local_functions(proto)
    walker = _Walker(proto)
    env, axes = _inputs(path, proto, shapes)
    walker.axes = axes
    found: list[Operator] = []
    walker.graph(proto.graph, env, found)
    return tuple(found)


def _inputs(path: Path, proto: Any, shapes: Mapping[str, Sequence[int]]) -> tuple[dict[str, Known], dict[str, int]]:
    held = {tensor.name for tensor in proto.graph.initializer}
    env: dict[str, Known] = {}
    axes: dict[str, int] = {}
    inputs = {value.name: value.type.tensor_type for value in proto.graph.input if value.name not in held}
    strangers = [name for name in shapes if name not in inputs]
    if strangers:
        raise InvalidInput(f"{path.name} has no input {strangers[0]!r}", f"use {', '.join(inputs)}")
    for name, kind in inputs.items():
        dims = [
            dim.dim_value if dim.HasField("dim_value") and dim.dim_value >= 0 else dim.dim_param
            for dim in kind.shape.dim
        ]
        known = kind.HasField("shape")
        given = tuple(int(size) for size in shapes[name]) if name in shapes else None
        if given is None:
            if not known or any(isinstance(dim, str) for dim in dims):
                raise InvalidInput(f"{path.name}: the shape of input {name!r} is not fixed", "give it a shape")
            given = tuple(int(dim) for dim in dims)
        wrong = known and (
            len(dims) != len(given) or any(isinstance(d, int) and d != n for d, n in zip(dims, given, strict=True))
        )
        if wrong or any(size < 0 for size in given):
            raise InvalidInput(f"{path.name}: input {name!r} cannot have the shape {list(given)}",
                               f"the model expects {[dim if dim != '' else '?' for dim in dims]}")  # fmt: skip
        if known:
            axes.update((dim, size) for dim, size in zip(dims, given, strict=True) if isinstance(dim, str) and dim)
        env[name] = Known(ONNX_NAMES.get(kind.elem_type), given)
    return env, axes


class _Walker:
    """Holds what stays the same over a model: the opsets and the sizes of named axes."""

    def __init__(self, proto: Any) -> None:
        self.opsets = {
            ("" if entry.domain == "ai.onnx" else entry.domain): entry.version for entry in proto.opset_import
        }
        self.imports = list(proto.opset_import)
        self.ir_version = proto.ir_version
        self.axes: dict[str, int] = {}

    def graph(self, graph: Any, env: dict[str, Known], found: list[Operator]) -> list[Known]:
        """Append the operators of `graph` to `found`; what its outputs are."""
        for tensor in graph.initializer:
            env[tensor.name] = _constant(tensor)
        for sparse in graph.sparse_initializer:
            env[sparse.values.name] = Known(ONNX_NAMES.get(sparse.values.data_type), tuple(sparse.dims), None, True)
        annotated = {value.name: value.type for value in (*graph.value_info, *graph.output)}
        for node in graph.node:
            outputs = self.node(node, env, found)
            for name, known in zip(node.output, outputs, strict=False):
                if name:
                    env[name] = self.annotate(known, annotated.get(name))
        return [env.get(value.name, Known()) for value in graph.output]

    def node(self, node: Any, env: dict[str, Known], found: list[Operator]) -> list[Known]:
        attributes = {attribute.name: attribute for attribute in node.attribute}
        if node.op_type == "Constant" and node.domain in ("", "ai.onnx"):
            return [_constant_node(node)]
        if node.op_type == "If":
            return self.branch(node, attributes, env, found)
        if node.op_type in ("Loop", "Scan"):
            return self.repeat(node, attributes, env, found)
        inputs = [env.get(name, Known()) if name else Known() for name in node.input]
        outputs = self.infer(node, inputs)
        settings = settings_of(node)
        read, weights = traffic(node.op_type, inputs, outputs)
        found.append(
            Operator(
                name=node.name or next((name for name in node.output if name), node.op_type),
                kind=node.op_type,
                flops=flops(node.op_type, settings, inputs, outputs),
                bytes=read,
                weight_bytes=weights,
                outputs=tuple(name for name in node.output if name),
                output_shape=outputs[0].shape if outputs else None,
            )
        )
        return outputs

    def branch(
        self, node: Any, attributes: Mapping[str, Any], env: dict[str, Known], found: list[Operator]
    ) -> list[Known]:
        condition = env.get(node.input[0], Known()).value
        names = ["then_branch", "else_branch"]
        if condition is not None:
            names = ["then_branch" if condition.reshape(-1)[0] else "else_branch"]
        tried: list[tuple[int, list[Operator], list[Known]]] = []
        for name in names:
            inside: list[Operator] = []
            outputs = self.graph(attributes[name].g, dict(env), inside)
            tried.append((sum(operator.flops for operator in inside), inside, outputs))
        _, inside, outputs = max(tried, key=lambda item: item[0])
        found.append(_owner(node, outputs))
        found.extend(inside)
        if len(names) > 1:  # values differ between branches
            outputs = [replace(known, value=None, weight=False) for known in outputs]
        return outputs

    def repeat(
        self, node: Any, attributes: Mapping[str, Any], env: dict[str, Known], found: list[Operator]
    ) -> list[Known]:
        body = attributes["body"].g
        inside: list[Operator] = []
        inner = dict(env)
        given = [env.get(name, Known()) if name else Known() for name in node.input]
        if node.op_type == "Loop":
            trips = _trips(given[0])
            states = [replace(known, value=None) for known in given[2:]]
            entering = [Known("int64", ()), Known("bool", ()), *states]
            carried = 1 + len(states)
        else:
            scanned = attributes["num_scan_inputs"].i if "num_scan_inputs" in attributes else 0
            states = [replace(known, value=None) for known in given[: len(given) - scanned]]
            slices = given[len(given) - scanned :]
            trips = next((known.shape[0] for known in slices if known.shape), 1)
            entering = states + [replace(k, value=None, shape=None if k.shape is None else k.shape[1:]) for k in slices]
            carried = len(states)
        for value, known in zip(body.input, entering, strict=False):
            inner[value.name] = known
        outputs = self.graph(body, inner, inside)
        gathered = [
            Known(known.dtype, None if known.shape is None else (trips, *known.shape)) for known in outputs[carried:]
        ]
        results = [
            replace(known, value=None, weight=False) for known in outputs[carried - len(states) : carried]
        ] + gathered
        found.append(_owner(node, results))
        found.extend(
            replace(item, flops=item.flops * trips, bytes=item.bytes * trips, weight_bytes=item.weight_bytes * trips)
            for item in inside
        )
        return results

    def infer(self, node: Any, inputs: Sequence[Known]) -> list[Known]:
        """The outputs of an operator without subgraphs."""
        constant = bool(inputs) and all(known.weight or known.dtype is None for known in inputs)
        node = as_standard(node)
        inputs = inputs[: len(node.input)]
        domain = "" if node.domain == "ai.onnx" else node.domain
        if domain == "" and node.op_type in ("Shape", "Size") and inputs[0].shape is not None:
            return [_shape_value(node, inputs[0])]
        if node.op_type in ONNXRUNTIME_IN_ONNX and not standard(domain, node.op_type, self.opsets.get(domain, 1)):
            domain = "com.microsoft"
        found = self._infer_standard(node, domain, inputs) if domain != "com.microsoft" else infer_contrib(node, inputs)
        outputs = [replace(known, weight=constant) for known in found]
        if domain == "" and node.op_type in _FOLDED:
            outputs = self._fold(node, inputs, outputs)
        return outputs

    def _infer_standard(self, node: Any, domain: str, inputs: Sequence[Known]) -> list[Known]:
        import onnx
        from onnx import helper, numpy_helper, shape_inference

        types, data = {}, {}
        for name, known in zip(node.input, inputs, strict=True):
            if not name:
                continue
            if known.dtype is None:
                return [Known() for _ in node.output]
            types[name] = helper.make_tensor_type_proto(_ONNX_NUMBERS[known.dtype], known.shape)
            if known.value is not None and known.dtype != "string":
                data[name] = numpy_helper.from_array(known.value, name)
        try:
            schema = onnx.defs.get_schema(node.op_type, self.opsets.get(domain, 1), domain)
            results = shape_inference.infer_node_outputs(
                schema, node, types, data, opset_imports=self.imports, ir_version=self.ir_version
            )
        except Exception:  # whatever a node lacks, its own annotation may have
            return [Known() for _ in node.output]
        return [_of_type(results[name]) if name in results else Known() for name in node.output]

    def _fold(self, node: Any, inputs: Sequence[Known], outputs: list[Known]) -> list[Known]:
        """Evaluate arithmetic on small known values, such as that on shapes."""
        from onnx.reference.ops import load_op

        named = [known for name, known in zip(node.input, inputs, strict=True) if name]
        sizes = [math.prod(known.shape) for known in outputs if known.shape is not None]
        if any(known.value is None for known in named) or max(sizes, default=0) > _SMALL:
            return outputs
        if len(sizes) < len(outputs) and node.op_type not in ("NonZero", "Slice", "Gather", "Concat"):
            return outputs  # how much memory it would take is not known
        try:
            operator = load_op("", node.op_type, self.opsets.get("", 1))(
                node, {"log": lambda *_: None, "opsets": self.opsets, "new_ops": None}
            )
            arguments = [known.value if name else None for name, known in zip(node.input, inputs, strict=True)]
            values = operator.run(*arguments)
        except Exception:  # the shape is known even where the value is not
            return outputs
        return [
            replace(known, dtype=str(value.dtype), shape=tuple(value.shape), value=value)
            if value.size <= _SMALL
            else known
            for known, value in zip(outputs, values, strict=False)
        ]

    def annotate(self, known: Known, kind: Any) -> Known:
        """Fill in what inference left open from the graph's own annotation."""
        if kind is None or not kind.HasField("tensor_type") or (known.shape is not None and known.dtype is not None):
            return known
        tensor = kind.tensor_type
        sizes = [
            dim.dim_value if dim.HasField("dim_value") else self.axes.get(dim.dim_param, -1) for dim in tensor.shape.dim
        ]
        complete = tensor.HasField("shape") and all(size >= 0 for size in sizes)
        return replace(
            known,
            dtype=known.dtype or ONNX_NAMES.get(tensor.elem_type),
            shape=tuple(sizes) if known.shape is None and complete else known.shape,
        )


def _constant(tensor: Any) -> Known:
    from onnx import numpy_helper

    shape, dtype = tuple(tensor.dims), ONNX_NAMES.get(tensor.data_type)
    value = None
    if not tensor.external_data and math.prod(shape) <= _SMALL and dtype is not None:
        value = numpy_helper.to_array(tensor)
    return Known(dtype, shape, value, weight=True)


def _constant_node(node: Any) -> Known:
    import numpy as np

    for attribute in node.attribute:
        if attribute.name == "value":
            return _constant(attribute.t)
        if attribute.name == "sparse_value":
            sparse = attribute.sparse_tensor
            return Known(ONNX_NAMES.get(sparse.values.data_type), tuple(sparse.dims), None, True)
        plain: Any = {
            "value_float": lambda a: np.float32(a.f),
            "value_int": lambda a: np.int64(a.i),
            "value_floats": lambda a: np.array(a.floats, np.float32),
            "value_ints": lambda a: np.array(a.ints, np.int64),
        }.get(attribute.name)
        if plain is not None:
            value = np.asarray(plain(attribute))
            return Known(str(value.dtype), value.shape, value, True)
        if attribute.name in ("value_string", "value_strings"):
            return Known("string", () if attribute.name == "value_string" else (len(attribute.strings),), None, True)
    return Known()


def _shape_value(node: Any, known: Known) -> Known:
    import numpy as np

    shape = known.shape or ()
    if node.op_type == "Size":
        value = np.asarray(math.prod(shape), np.int64)
    else:
        bounds = {attribute.name: attribute.i for attribute in node.attribute}
        value = np.array(shape[bounds.get("start", 0) : bounds.get("end", len(shape))], np.int64)
    return Known("int64", value.shape, value)


def _of_type(kind: Any) -> Known:
    if not kind.HasField("tensor_type"):
        return Known()
    tensor = kind.tensor_type
    dims = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim]
    known = tensor.HasField("shape") and all(dim >= 0 for dim in dims)
    return Known(ONNX_NAMES.get(tensor.elem_type), tuple(dims) if known else None)


def _owner(node: Any, outputs: Sequence[Known]) -> Operator:
    """A node whose work is its subgraph's, listed after it."""
    names = tuple(name for name in node.output if name)
    return Operator(node.name or next(iter(names), node.op_type), node.op_type, 0, 0, 0, names,
                    outputs[0].shape if outputs else None)  # fmt: skip


def _trips(count: Known) -> int:
    if count.value is None:
        return 1
    trips = int(count.value.reshape(-1)[0])
    return trips if 0 <= trips < 1 << 31 else 1  # exporters write the largest integer for "until the condition fails"
