"""What a model computes from one whole number alone is read from a table: one-hot products, and what follows them.

Exporters write an embedding as a comparison with 0..N-1 and a product with the weights; it costs 2 N D operations for
each number, and N times the memory. The operators behind it that work element by element with constants, such as a bias
and an activation, have only N different results, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hasten.errors import Failed, InvalidInput
from hasten.levers.base import Case, Need, Prediction, Proposal
from hasten.levers.modelfile import fresh_folder, load_onnx, need_onnx, part_of, same_signature, save_onnx
from hasten.levers.modelfile import with_initialisers as constants_inside
from hasten.levers.prediction import amdahl, format_of, quantises
from hasten.recipe import Step
from hasten.variant import Variant

MARKS = ["Equal", "Cast", "MatMul"]
"""One after the other in the order of execution."""
READING = 20.0
OLDEST_OPSET = 11
ELEMENTWISE = frozenset(
    """
Abs Add Clip Div Erf Exp Gelu Identity LeakyRelu Log Mul Neg Pow Reciprocal Relu Sigmoid Softplus Sqrt Sub Tanh
""".split()  # noqa: SIM905
)


class Table:
    """The results are the same numbers: a number outside 0..N-1 still gives what a row of zeros gives."""

    name = "table"
    needs: frozenset[Need] = frozenset()

    def propose(self, case: Case) -> Iterable[Proposal]:
        if case.recipe.has(self.name) or format_of(case) != "onnx" or quantises(case.recipe):
            return
        kinds = [operator.kind for operator in case.operators]
        products = [at + 2 for at in range(len(kinds) - 2) if kinds[at : at + 3] == MARKS]
        total = sum(operator.flops for operator in case.operators)
        if not products or not total:
            return
        share = sum(case.operators[at].flops for at in products) / total
        gain = Prediction(amdahl(share, READING), f"estimate: {share:.0%} of the arithmetic is a one-hot product")
        why = "a product with a one-hot number, and what follows it, is read from a table"
        yield Proposal(case.recipe.with_step(Step(self.name)), gain, why, self.name)

    def apply(self, variant: Variant, step: Step, case: Case) -> Variant:
        from hasten import formats

        if step.options:
            raise InvalidInput(f"table has no option {next(iter(step.options))!r}", "leave it out")
        model = part_of(variant, step)
        need_onnx(model, self.name)
        proto = constants_inside(load_onnx(model.path))
        if not tabulate(proto):
            raise Failed("table changed nothing: no product with a one-hot number was found")
        path = save_onnx(proto, fresh_folder(case.workdir, self.name) / "model.onnx")
        return variant.with_part(step.part, same_signature(model, formats.inspect(path), self.name))


@dataclass(frozen=True)
class _Found:
    """`product` multiplies the one-hot of `numbers` (its last axis has one element) below `count` with weights."""

    product: Any
    numbers: str
    count: int
    rank: int


def tabulate(proto: Any) -> int:
    """Replace, in place, every one-hot product of the ONNX model by a table; how many there were."""
    import onnx
    from onnx import numpy_helper

    if next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), 0) < OLDEST_OPSET:
        return 0
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    try:
        inferred = onnx.shape_inference.infer_shapes(proto).graph
    except Exception:  # a graph whose shapes cannot be inferred is left as it is
        return 0
    shapes = {value.name: _dims(value) for value in [*inferred.value_info, *inferred.input]}
    found = list(_one_hots(proto.graph, constants, shapes))
    for number, each in enumerate(found):
        region = _region(proto.graph, each, constants)
        table = _values(proto, each, region, constants)
        _replace(proto.graph, each, region, table, f"table_{number}")
    return len(found)


def _dims(value: Any) -> list[Any] | None:
    shape = value.type.tensor_type
    return [dim.dim_value or dim.dim_param for dim in shape.shape.dim] if shape.HasField("shape") else None


def _one_hots(graph: Any, constants: Mapping[str, Any], shapes: Mapping[str, Any]) -> Iterator[_Found]:
    import numpy as np

    makers = {output: node for node in graph.node for output in node.output}
    for product in graph.node:
        if product.op_type != "MatMul" or getattr(constants.get(product.input[1]), "ndim", 0) != 2:
            continue
        cast = makers.get(product.input[0])
        equal = makers.get(cast.input[0]) if cast is not None and cast.op_type == "Cast" else None
        if equal is None or equal.op_type != "Equal":
            continue
        for counted, numbers in (tuple(equal.input), tuple(equal.input)[::-1]):
            row = constants.get(counted)
            if row is None or row.dtype.kind not in "iu" or row.size != row.shape[-1] or numbers in constants:
                continue
            if np.array_equal(row.ravel(), np.arange(row.size)) and _alike(numbers, makers, shapes):
                yield _Found(product, numbers, row.size, max(row.ndim, 2))


def _alike(name: str, makers: Mapping[str, Any], shapes: Mapping[str, Any]) -> bool:
    """Whether a value is the same all along its last axis: it has one element there, or was spread from one."""
    node = makers.get(name)
    names = [name, node.input[0]] if node is not None and node.op_type == "Expand" else [name]
    return any((shapes.get(each) or [0])[-1] == 1 for each in names)


def _region(graph: Any, found: _Found, constants: Mapping[str, Any]) -> list[Any]:
    """The product and what follows it element by element, up to the last value through which all of it is used."""
    nodes, values = [found.product], {found.product.output[0]}
    for node in graph.node:
        inner = [name for name in node.input if name in values]
        others = [name for name in node.input if name and name not in values]
        if node.op_type in ELEMENTWISE and inner and all(_along_last(constants.get(name)) for name in others):
            nodes.append(node)
            values.update(node.output)
    leaving = {output.name for output in graph.output}
    while True:
        kept = {id(node) for node in nodes}
        used = leaving | {name for node in graph.node if id(node) not in kept for name in node.input}
        inside = {name for node in nodes for name in node.input}
        ends = [node for node in nodes if node.output[0] in used or node.output[0] not in inside]
        if len(ends) == 1:
            return nodes
        nodes.remove(ends[-1])


def _along_last(constant: Any) -> bool:
    """Whether a constant says the same of every number: it varies along the last axis alone."""
    return constant is not None and (constant.ndim == 0 or constant.size == constant.shape[-1])


def _values(proto: Any, found: _Found, region: list[Any], constants: Mapping[str, Any]) -> Any:
    """[count + 1, D]: what the region gives for each number, and for one that is out of range."""
    import numpy as np
    import onnxruntime as ort
    from onnx import TensorProto, helper

    weights = constants[found.product.input[1]]
    one_hot = np.eye(found.count + 1, found.count, dtype=weights.dtype)
    one_hot = one_hot.reshape((1,) * (found.rank - 2) + one_hot.shape)
    needed = {name for node in region for name in node.input}
    kind = helper.np_dtype_to_tensor_dtype(weights.dtype)
    end = _end(region)
    graph = helper.make_graph(
        region,
        "table",
        [helper.make_tensor_value_info(found.product.input[0], kind, one_hot.shape)],
        [helper.make_tensor_value_info(end, TensorProto.UNDEFINED, None)],
        [tensor for tensor in proto.graph.initializer if tensor.name in needed],
    )
    graph.output[0].type.Clear()
    model = helper.make_model(graph, opset_imports=proto.opset_import, ir_version=proto.ir_version)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run([end], {found.product.input[0]: one_hot})[0].reshape(found.count + 1, -1)


def _end(region: list[Any]) -> str:
    inside = {name for node in region for name in node.input}
    return str(next(node.output[0] for node in region if node.output[0] not in inside))


def _replace(graph: Any, found: _Found, region: list[Any], table: Any, name: str) -> None:
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    def constant(label: str, value: Any) -> str:
        graph.initializer.append(numpy_helper.from_array(np.asarray(value), f"{name}_{label}"))
        return f"{name}_{label}"

    end = _end(region)
    first, below, limit = constant("first", np.int64(0)), constant("below", np.int64(-1)), found.count
    count, rows = constant("count", np.int64(limit)), constant("rows", table)
    made = [
        helper.make_node("Gather", [found.numbers, first], [f"{name}_short"], axis=-1),
        helper.make_node("Cast", [f"{name}_short"], [f"{name}_number"], to=TensorProto.INT64),
        helper.make_node("Less", [f"{name}_number", count], [f"{name}_low"]),
        helper.make_node("Greater", [f"{name}_number", below], [f"{name}_high"]),
        helper.make_node("And", [f"{name}_low", f"{name}_high"], [f"{name}_valid"]),
        helper.make_node("Where", [f"{name}_valid", f"{name}_number", count], [f"{name}_row"]),
        helper.make_node("Gather", [rows, f"{name}_row"], [end], axis=0),
    ]
    for node in made:
        node.name = node.output[0]
    gone = {id(node) for node in region}
    at = next(i for i, node in enumerate(graph.node) if id(node) in gone)
    kept = [node for node in graph.node if id(node) not in gone]
    nodes = _alive([*kept[:at], *made, *kept[at:]], {output.name for output in graph.output})
    del graph.node[:]
    graph.node.extend(nodes)
    used = {name for node in nodes for name in node.input}
    tensors = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.initializer[:]
    graph.initializer.extend(tensors)


def _alive(nodes: list[Any], wanted: set[str]) -> list[Any]:
    """Copies of the nodes that something wanted needs; a node with a branch keeps what the branch may read."""
    import copy

    needed, found = set(wanted), []
    for node in reversed(nodes):
        if needed & set(node.output):
            needed.update(node.input)
            for attribute in node.attribute:
                needed.update(name for inner in attribute.g.node for name in inner.input)
            found.append(copy.deepcopy(node))
    return found[::-1]
