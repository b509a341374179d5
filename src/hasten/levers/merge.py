"""Products that share their input become one: fewer, larger kernels where each is too small to fill a core.

A decoding step of a small language model is hundreds of products of one row, and starting one takes longer than its
arithmetic: query, key and value of a layer, and the two halves of its gated feed-forward part, are each one product.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from hasten.errors import Failed, InvalidInput
from hasten.levers.base import Case, Need, Prediction, Proposal
from hasten.levers.modelfile import fresh_folder, is_constant, part_of, read_openvino, same_signature, save_openvino
from hasten.levers.prediction import runtime_of
from hasten.recipe import Step
from hasten.variant import Program, Variant

PRIOR = Prediction(1.2, "prior: 1.1x to 1.4x on a decoder of 135 million weights")
_BINARY = ("Subtract", "Multiply", "Add")


class Merge:
    """The results are the same numbers: each row of weights keeps its own scale and zero point."""

    name = "merge"
    needs: frozenset[Need] = frozenset()
    programs: frozenset[Program] = frozenset({"generate"})

    def propose(self, case: Case) -> Iterable[Proposal]:
        if runtime_of(case) in ("openvino", "openvino_genai") and not case.recipe.has(self.name):
            why = "products of one input in one: fewer kernels to start for each token"
            yield Proposal(case.recipe.with_step(Step(self.name)), PRIOR, why, self.name)

    def apply(self, variant: Variant, step: Step, case: Case) -> Variant:
        from hasten import formats

        if step.options:
            raise InvalidInput(f"merge has no option {next(iter(step.options))!r}", "leave it out")
        model = part_of(variant, step)
        graph = read_openvino(model)
        if not merged(graph):
            raise Failed("merge changed nothing: no products with constant weights share their input")
        path = save_openvino(graph, fresh_folder(case.workdir, self.name) / "model.xml")
        return variant.with_part(step.part, same_signature(model, formats.inspect(path), self.name))


def merged(model: Any) -> int:
    """Merge, in place, the products of OpenVINO's `model` that share their input; how many groups there were."""
    import numpy as np
    from openvino import opset13 as op

    alike: dict[tuple[Any, ...], list[Any]] = defaultdict(list)
    for node in model.get_ordered_ops():
        if node.get_type_name() == "MatMul" and is_constant(node.input_value(1).get_node()):
            source, settings = node.input_value(0), node.get_attributes()
            shape = node.input_value(1).get_partial_shape()
            if settings["transpose_b"] and shape.rank.get_length() == 2:  # weights are [out, in]
                key = (source.get_node().get_friendly_name(), source.get_index(), settings["transpose_a"])
                alike[key].append(node)
    count = 0
    for nodes in alike.values():
        if len(nodes) < 2:
            continue
        try:
            weights = _stacked([node.input_value(1).get_node() for node in nodes])
        except _Different:
            continue
        sizes = [node.output(0).get_partial_shape()[-1].get_length() for node in nodes]
        product = op.matmul(nodes[0].input_value(0), weights, nodes[0].get_attributes()["transpose_a"], True)
        parts = op.variadic_split(product, op.constant(np.int64(-1)), op.constant(np.array(sizes, np.int64)))
        for index, node in enumerate(nodes):
            node.output(0).replace(parts.output(index))
        count += 1
    model.validate_nodes_and_infer_types()
    return count


class _Different(Exception):
    """Weights that are not made in the same way."""


def _stacked(nodes: Sequence[Any]) -> Any:
    """What makes the weights of `nodes`, one above the other: the same operators over longer constants."""
    from openvino import opset13 as op

    first = nodes[0]
    kind = first.get_type_name()
    if any(node.get_type_name() != kind or node.get_input_size() != first.get_input_size() for node in nodes):
        raise _Different
    if kind == "Constant":
        return _stacked_constant(nodes)
    if kind == "Reshape":
        made = op.reshape(
            _stacked([node.input_value(0).get_node() for node in nodes]),
            _stacked_shape([node.input_value(1).get_node() for node in nodes]),
            False,
        )
    elif kind == "Convert":
        if len({node.get_output_element_type(0) for node in nodes}) > 1:
            raise _Different
        made = op.convert(
            _stacked([node.input_value(0).get_node() for node in nodes]), first.get_output_element_type(0)
        )
    elif kind in _BINARY:
        left, right = (_stacked([node.input_value(i).get_node() for node in nodes]) for i in (0, 1))
        made = getattr(op, kind.lower())(left, right)
    else:
        raise _Different
    # Its mark keeps the runtime from folding the weights into wide ones.
    for key, value in first.get_rt_info().items():
        made.get_rt_info()[key] = value
    return made


def _stacked_constant(nodes: Sequence[Any]) -> Any:
    import numpy as np
    from openvino import Shape, Tensor
    from openvino import opset13 as op

    kinds = {node.get_element_type() for node in nodes}
    shapes = [list(node.get_output_shape(0)) for node in nodes]
    if len(kinds) > 1 or any(not shape or shape[1:] != shapes[0][1:] for shape in shapes):
        raise _Different  # one scale for all of a tensor, or groups of another size
    whole = [sum(shape[0] for shape in shapes), *shapes[0][1:]]
    kind = kinds.pop()
    if kind.bitwidth < 8:
        if any(int(np.prod(shape)) * kind.bitwidth % 8 for shape in shapes):
            raise _Different  # rows that begin within a byte
        held = Tensor(kind, Shape(whole))  # memory of its own: one made from an array would only point to it
        held.data[:] = np.concatenate([np.array(node.get_tensor_view().data).view(np.uint8) for node in nodes])
        return op.constant(held)
    return op.constant(np.concatenate([node.get_data() for node in nodes]))


def _stacked_shape(nodes: Sequence[Any]) -> Any:
    """The shape that a Reshape takes: the first size is that of all of them."""
    import numpy as np
    from openvino import opset13 as op

    sizes = [node.get_data() for node in nodes if node.get_type_name() == "Constant"]
    if len(sizes) < len(nodes) or any(list(each[1:]) != list(sizes[0][1:]) or each[0] < 0 for each in sizes):
        raise _Different
    return op.constant(np.array([sum(int(each[0]) for each in sizes), *sizes[0][1:]], np.int64))
