"""The sensitivity of an ONNX model: quantises one group of nodes at a time, with ranges calibrated once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hasten.levers.grouping import Group, Node, groups_of
from hasten.levers.int8_onnx import prepare, quantise
from hasten.model import Model

HEAVY = frozenset({"Conv", "ConvTranspose", "MatMul", "Gemm"})
MOVING = frozenset(
    {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Split", "Slice", "Concat", "Pad", "MaxPool", "Gather", "Expand"}
    | {"Flatten", "Tile", "DepthToSpace", "SpaceToDepth", "Relu", "Clip", "Resize"}
)


class OnnxGraph:
    """The prepared model, quantised again for each group."""

    def __init__(
        self, before: Model, batches: Sequence[Mapping[str, Any]], options: Mapping[str, Any], folder: Path
    ) -> None:
        import onnx

        self._batches, self._options, self._folder = batches, {**options, "keep": []}, folder
        self._ranges = folder / "ranges.json"
        self._prepared = prepare(before.path, folder)
        self._full = quantise(self._prepared, folder / "full.onnx", batches, self._options, ranges=self._ranges)
        graph = onnx.load(str(self._prepared), load_external_data=False).graph
        maker = {output: node.name for node in graph.node for output in node.output}
        full = onnx.load(str(self._full), load_external_data=False).graph
        pairs = {output for node in full.node if node.op_type == "DequantizeLinear" for output in node.output}
        touched = {node.name for node in full.node if pairs & set(node.input)}
        nodes = [
            Node(
                node.name,
                tuple(maker[name] for name in node.input if name in maker),
                node.op_type in HEAVY,
                node.name in touched,
                node.op_type in MOVING,
            )
            for node in graph.node
        ]
        self.groups, owner = groups_of(nodes)
        # the profile speaks of output tensors
        tensors = {output: owner[name] for output, name in maker.items() if name in owner}
        self.owner: Mapping[str, str] = {**tensors, **owner}

    def reference(self) -> Any:
        return _runner(self._prepared)

    def only(self, group: Group | None) -> Any:
        """A function that runs the model with only this group quantised; all of them for None."""
        if group is None:
            return _runner(self._full)
        target = self._folder / "group.onnx"
        nodes = list(group.nodes)
        quantise(self._prepared, target, self._batches, self._options, nodes, self._ranges)
        return _runner(target)


def _runner(path: Path) -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(batch: Mapping[str, Any]) -> dict[str, Any]:
        return dict(zip(names, session.run(None, dict(batch)), strict=True))

    return run
