"""The sensitivity of an OpenVINO model: runs it with the quantisers of one group only, by rewiring the graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hasten.levers.grouping import Group, Node, groups_of
from hasten.levers.int8_openvino import quantise
from hasten.levers.modelfile import read_openvino
from hasten.model import Model

HEAVY = frozenset(
    {"Convolution", "GroupConvolution", "ConvolutionBackpropData", "GroupConvolutionBackpropData", "MatMul"}
    | {"LSTMSequence", "GRUSequence", "RNNSequence"}
)
MOVING = frozenset(
    {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Split", "VariadicSplit", "StridedSlice", "Slice", "Concat", "Pad"}
    | {"MaxPool", "Gather", "Broadcast", "Tile", "DepthToSpace", "SpaceToDepth", "ShuffleChannels", "Convert", "Relu"}
)
_SOURCES = frozenset({"Constant", "Parameter", "Result", "FakeQuantize"})


class OpenVinoGraph:
    """The fully quantised graph whose quantisers are switched on for one group at a time."""

    def __init__(self, before: Model, batches: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> None:
        # Bias correction is off here: it shifts biases for all groups together, which single ones must not pay for.
        plain = {**options, "bias_correction": "off", "keep": []}
        self._before = before
        self._model = quantise(read_openvino(before), batches, plain, compress=False)
        ops = {op.get_friendly_name(): op for op in self._model.get_ordered_ops()}
        self._edges = [
            (target, quantiser, quantiser.input_value(0))
            for quantiser in ops.values()
            if quantiser.get_type_name() == "FakeQuantize"
            for target in quantiser.output(0).get_target_inputs()
        ]
        served = {id(target): list(_served(target.get_node())) for target, _, _ in self._edges}
        touched = {name for names in served.values() for name in names}
        nodes = [
            Node(
                name,
                tuple(_producers(op)),
                op.get_type_name() in HEAVY,
                name in touched,
                op.get_type_name() in MOVING,
            )
            for name, op in ops.items()
            if op.get_type_name() not in _SOURCES
        ]
        self.groups, self.owner = groups_of(nodes)
        self._owners = [
            frozenset(self.owner[name] for name in served[id(target)] if name in self.owner)
            for target, _, _ in self._edges
        ]

    def reference(self) -> Any:
        """A function that runs the model unquantised."""
        return _runner(read_openvino(self._before))

    def only(self, group: Group | None) -> Any:
        """A function that runs the model with only this group quantised; all of them for None."""
        for (target, quantiser, source), owners in zip(self._edges, self._owners, strict=True):
            on = group is None or group.name in owners
            target.replace_source_output(quantiser.output(0) if on else source)
        return _runner(self._model)


def _runner(model: Any) -> Any:
    """fp32 arithmetic around the quantised operators, so that nothing but quantisation shows."""
    import openvino as ov

    compiled = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    names = [next(iter(sorted(output.get_names())), str(i)) for i, output in enumerate(compiled.outputs)]

    def run(batch: Mapping[str, Any]) -> dict[str, Any]:
        known = {name for port in compiled.inputs for name in port.get_names()}
        result = compiled({name: array for name, array in batch.items() if name in known})
        return {name: result[i].copy() for i, name in enumerate(names)}

    return run


def _served(op: Any) -> Iterator[str]:
    """The operators that a quantiser in front of `op` is for: `op`, or what follows where it only moves data."""
    if op.get_type_name() not in MOVING:
        if op.get_type_name() not in _SOURCES:
            yield op.get_friendly_name()
        return
    for output in op.outputs():
        for target in output.get_target_inputs():
            yield from _served(target.get_node())


def _producers(op: Any) -> Iterator[str]:
    for value in op.input_values():
        source = value.get_node()
        while source.get_type_name() == "FakeQuantize":
            source = source.input_value(0).get_node()
        if source.get_type_name() not in _SOURCES:
            yield source.get_friendly_name()
