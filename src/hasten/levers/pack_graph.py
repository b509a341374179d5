"""Rewrites an ONNX encoder so that several sequences share a row: see `runner.packing` for what it then takes.

Nothing is matched by name or by pattern alone. The graph runs once on a padded batch with every intermediate value
kept, and these values say what is what: a Softmax over keys is attention; what is added to its input and is 0 for
tokens and hugely negative for padding is the mask; the rows that a Gather takes in the order 0, 1, 2, ... are
positions; a value that is the mean of a sequence's tokens, or its first token, is the pooled one. Then the rewritten
graph runs on the same samples packed, and must give the same outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hasten.errors import Failed
from hasten.levers.modelfile import EXTERNAL_ABOVE_BYTES, weight_bytes
from hasten.model import Signature, Tensor
from hasten.runner import packing
from hasten.runner.padding import stack
from hasten.workload import Padding

MASKED = -1e4
"""A mask adds at most this to what it hides."""
FAR = -1e9
"""What is added to the scores of another sequence's tokens."""
CLOSE = 1e-3
TOLERANCE = 1e-3

Sample = Mapping[str, np.ndarray]


@dataclass
class Seen:
    """The graph with what every value was on the probe. `valid` [rows, tokens] tells tokens from padding."""

    proto: Any
    values: Mapping[str, np.ndarray]
    valid: np.ndarray
    order: dict[str, int]
    weights: Mapping[str, np.ndarray]

    @property
    def rows(self) -> int:
        return int(self.valid.shape[0])

    @property
    def tokens(self) -> int:
        return int(self.valid.shape[1])


def pack(proto: Any, signature: Signature, padding: Padding, samples: Sequence[Sample], folder: Path) -> Any:
    """The packed graph. Raises `Failed` where something in the graph mixes tokens in a way that is not known."""
    lengths = [sample[next(iter(padding.values))].shape[padding.axis] for sample in samples]
    if len(set(lengths)) < 2:
        raise Failed("the calibration samples are all of one length: there is nothing to tell padding by")
    seen = look(proto, padding, samples, lengths, folder)
    edited = Editor(seen)
    if not edited.attention():
        raise Failed("no attention was found in the graph")
    edited.positions()
    for output in proto.graph.output:
        if output.name not in (padding.outputs or {}):
            edited.pooling(output.name)
    edited.finish()
    check(proto, seen, signature, padding, samples, lengths, folder)
    return proto


def look(proto: Any, padding: Padding, samples: Sequence[Sample], lengths: Sequence[int], folder: Path) -> Seen:
    """Run the graph on the samples padded to one length, and keep every value."""
    import copy

    import onnx
    from onnx import numpy_helper

    batch = stack(samples, padding, max(lengths))
    probe = copy.deepcopy(proto)
    had = {output.name for output in probe.graph.output}
    names = [name for node in probe.graph.node for name in node.output if name]
    probe.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in names if name not in had)
    path = folder / "probe.onnx"
    onnx.save(probe, str(path), save_as_external_data=weight_bytes(probe) > EXTERNAL_ABOVE_BYTES, location="probe.data")
    try:
        values = _run(path, batch, optimise=False)
    finally:
        path.unlink()
        (folder / "probe.data").unlink(missing_ok=True)
    valid = np.zeros((len(samples), max(lengths)), bool)
    for row, length in zip(valid, lengths, strict=True):
        row[:length] = True
    order = {name: at for at, node in enumerate(proto.graph.node) for name in node.output}
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}
    return Seen(proto, {**values, **batch}, valid, order, weights)


class Editor:
    """Edits `seen.proto` in place; `finish` adds the new inputs and nodes, and drops what nothing reads any more."""

    def __init__(self, seen: Seen) -> None:
        self.seen, self.graph = seen, seen.proto.graph
        self.before: list[Any] = []
        self.new_inputs: dict[str, Any] = {}
        self.last_attention = -1
        self._bias = ""

    # -- attention ------------------------------------------------------------------------------------------------

    def attention(self) -> int:
        """Keep every Softmax over keys to its own sequence; how many there are."""
        found = 0
        for at, node in enumerate([*self.graph.node]):
            if node.op_type != "Softmax" or not self._over_keys(node):
                continue
            found += 1
            self.last_attention = at
            producer = self._producer(node.input[0])
            masks = [] if producer is None else [name for name in producer.input if self._is_mask(name)]
            if producer is not None and producer.op_type == "Add" and masks:
                self._replace_input(producer, masks[0], self._blocks())
            else:
                self._add_before(node)
        return found

    def _over_keys(self, node: Any) -> bool:
        value = self.seen.values.get(node.input[0])
        axis = next((a.i for a in node.attribute if a.name == "axis"), -1)
        if value is None or value.ndim < 3 or axis not in (-1, value.ndim - 1):
            return False
        return bool(value.shape[-1] == value.shape[-2] == self.seen.tokens)

    def _is_mask(self, name: str) -> bool:
        """Whether a value is 0 for tokens and hugely negative for padding, and nothing else."""
        value = self.seen.values.get(name)
        if value is None or value.dtype.kind != "f" or value.ndim < 2 or value.shape[-1] != self.seen.tokens:
            return False
        if value.ndim > 4 or value.shape[0] not in (1, self.seen.rows):
            return False
        flat = np.broadcast_to(value, (self.seen.rows, *value.shape[1:])).reshape(self.seen.rows, -1, self.seen.tokens)
        hidden = np.broadcast_to(~self.seen.valid[:, None, :], flat.shape)
        return bool((flat[~hidden] == 0).all() and (flat[hidden] <= MASKED).all() and hidden.any())

    def _blocks(self) -> str:
        """What is 0 where two tokens belong to one sequence, else hugely negative: [rows, 1, tokens, tokens]."""
        if self._bias:
            return self._bias
        segments = self._input(packing.SEGMENTS, np.int64, ("rows", "tokens"))
        asked = self._new("Unsqueeze", [segments, self._constant(np.array([1, 3], np.int64))])
        keys = self._new("Unsqueeze", [segments, self._constant(np.array([1, 2], np.int64))])
        same = self._new("Equal", [asked, keys])
        zero, far = self._constant(np.array(0, np.float32)), self._constant(np.array(FAR, np.float32))
        self._bias = self._new("Where", [same, zero, far])
        return self._bias

    def _add_before(self, softmax: Any) -> None:
        """Scores that hold something else besides the mask keep it, and the blocks are added."""
        import onnx

        name = f"{softmax.input[0]}_in_blocks"
        self.before.append(onnx.helper.make_node("Add", [softmax.input[0], self._blocks()], [name], name=name))
        softmax.input[0] = name

    # -- positions ------------------------------------------------------------------------------------------------

    def positions(self) -> None:
        """Let every lookup by place in the row look up by place in the sequence."""
        for node in [*self.graph.node]:
            if node.op_type == "Gather" and node.input[0] in self.seen.weights:
                offset = self._counts_from(self.seen.values.get(node.input[1]))
                if offset is not None and self._axis(node) == 0:
                    self._replace_input(node, node.input[1], self._places(offset))
            elif node.op_type == "Slice" and node.input[0] in self.seen.weights:
                self._sliced(node)

    def _counts_from(self, indices: np.ndarray | None) -> int | None:
        """The first index where these count up by one along each sequence, else None."""
        if (
            indices is None
            or indices.dtype.kind not in "iu"
            or indices.ndim < 1
            or indices.shape[-1] != self.seen.tokens
        ):
            return None
        if indices.ndim > 2 or (indices.ndim == 2 and indices.shape[0] not in (1, self.seen.rows)):
            return None
        rows = np.broadcast_to(indices.reshape(-1, self.seen.tokens), (self.seen.rows, self.seen.tokens))
        first = int(rows[0, 0])
        counted = first + np.arange(self.seen.tokens)
        return (
            first
            if all((row[ok] == counted[ok]).all() for row, ok in zip(rows, self.seen.valid, strict=True))
            else None
        )

    def _sliced(self, node: Any) -> None:
        """A table of positions that is cut to the length: looked up instead."""
        table, cut = self.seen.weights[node.input[0]], self.seen.values.get(node.output[0])
        if cut is None or cut.ndim < 2 or cut.dtype.kind != "f" or cut.shape[-2] != self.seen.tokens:
            return
        flat = table.reshape(-1, table.shape[-1])
        if table.size != flat.size or cut.size != self.seen.tokens * table.shape[-1]:
            return
        wanted = cut.reshape(self.seen.tokens, -1)
        starts = [
            at for at in range(len(flat) - len(wanted) + 1) if np.array_equal(flat[at : at + len(wanted)], wanted)
        ]
        if not starts:
            return
        place = self._new("Gather", [self._constant(flat), self._places(starts[0])])
        self._everywhere(node.output[0], place)

    def _places(self, offset: int) -> str:
        positions = self._input(packing.POSITIONS, np.int64, ("rows", "tokens"))
        return self._new("Add", [positions, self._constant(np.array(offset, np.int64))]) if offset else positions

    # -- pooling --------------------------------------------------------------------------------------------------

    def pooling(self, output: str) -> None:
        """Pool each sequence of a row by itself. The earliest value that pools the latest tokens is replaced."""
        upstream = self._ancestors(output)
        after = [
            n for at, n in enumerate(self.graph.node) if at > self.last_attention or n.op_type == "LayerNormalization"
        ]
        names = [name for node in after for name in node.output if name in upstream or name == output]
        tokens = [n for n in names if self._by_token(n)]
        for name in names:
            value = self.seen.values.get(name)
            if value is None or not self._pooled_shape(value):
                continue
            for hidden in reversed(
                [t for t in tokens if self.seen.order.get(t, 1 << 30) < self.seen.order.get(name, -1)]
            ):
                kind = self._kind(self.seen.values[hidden], value)
                if kind is not None:
                    self._pool(name, value, hidden, kind)
                    return
        raise Failed(f"output {output} is pooled from its tokens in a way that is not known (mean and first token are)")

    def _by_token(self, name: str) -> bool:
        value = self.seen.values.get(name)
        return bool(
            value is not None
            and value.dtype.kind == "f"
            and value.ndim == 3
            and value.shape[:2] == (self.seen.rows, self.seen.tokens)
            and name not in self.seen.weights
        )

    def _pooled_shape(self, value: np.ndarray) -> bool:
        if value.dtype.kind != "f" or value.shape[0] != self.seen.rows:
            return False
        return value.ndim == 2 or (value.ndim == 3 and value.shape[1] == 1)

    def _kind(self, hidden: np.ndarray, pooled: np.ndarray) -> str | None:
        """How `pooled` comes from `hidden`, if it does."""
        if hidden.shape[-1] != pooled.shape[-1]:
            return None
        flat = pooled.reshape(self.seen.rows, -1).astype(np.float64)
        wide, scale = hidden.astype(np.float64), max(1e-6, float(np.abs(flat).max()))
        mean = np.stack([row[ok].mean(axis=0) for row, ok in zip(wide, self.seen.valid, strict=True)])
        for kind, made in (("mean", mean), ("first", wide[:, 0])):
            if np.abs(made - flat).max() <= CLOSE * scale:
                return kind
        return None

    def _pool(self, name: str, value: np.ndarray, hidden: str, kind: str) -> None:
        width = value.shape[-1]
        if kind == "mean":
            weights = self._input(packing.MEAN, np.float32, ("rows", "segments", "tokens"))
            made = self._new("MatMul", [weights, hidden])
        else:
            first = self._input(packing.FIRST, np.int64, ("sequences",))
            flat = self._new("Reshape", [hidden, self._constant(np.array([-1, width], np.int64))])
            made = self._new("Gather", [flat, first])
        shape = [-1, width] if value.ndim == 2 else [-1, 1, width]
        pooled = self._new("Reshape", [made, self._constant(np.array(shape, np.int64))])
        if name in {output.name for output in self.graph.output}:
            self._rename_producer(name, f"{name}_padded")
            self._rename_producer(pooled, name)
        else:
            self._everywhere(name, pooled)

    # -- the graph ------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Put the new nodes where their inputs are made, name the new inputs, free the axes, drop what is unused."""
        nodes = [*self.before, *self.graph.node]
        needed = {output.name for output in self.graph.output}
        kept: list[Any] = []
        for node in reversed(_sorted(nodes, self.graph)):
            if needed & set(node.output):
                kept.append(node)
                needed |= {name for name in node.input if name} | _inner(node)
        del self.graph.node[:]
        self.graph.node.extend(reversed(kept))
        used = [tensor for tensor in self.graph.initializer if tensor.name in needed]
        del self.graph.initializer[:]
        self.graph.initializer.extend(used)
        del self.graph.value_info[:]
        for values, names in ((self.graph.input, ("rows", "tokens")), (self.graph.output, ())):
            for value in values:
                for axis, dim in enumerate(value.type.tensor_type.shape.dim):
                    if not dim.HasField("dim_value"):
                        dim.dim_param = names[axis] if axis < len(names) else f"{value.name}_{axis}"
        self.graph.input.extend(self.new_inputs.values())

    def _input(self, name: str, dtype: Any, dims: Sequence[str]) -> str:
        import onnx

        if name not in self.new_inputs:
            kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
            self.new_inputs[name] = onnx.helper.make_tensor_value_info(name, kind, list(dims))
        return name

    def _constant(self, array: np.ndarray) -> str:
        from onnx import numpy_helper

        name = f"packed_constant_{len(self.graph.initializer)}"
        self.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def _new(self, kind: str, inputs: Sequence[str]) -> str:
        import onnx

        name = f"packed_{kind.lower()}_{len(self.before)}"
        self.before.append(onnx.helper.make_node(kind, list(inputs), [name], name=name))
        return name

    def _producer(self, name: str) -> Any:
        return next((node for node in self.graph.node if name in node.output), None)

    def _axis(self, node: Any) -> int:
        return next((int(a.i) for a in node.attribute if a.name == "axis"), 0)

    def _replace_input(self, node: Any, old: str, new: str) -> None:
        for at, name in enumerate(node.input):
            if name == old:
                node.input[at] = new

    def _everywhere(self, old: str, new: str) -> None:
        for node in self.graph.node:
            self._replace_input(node, old, new)

    def _rename_producer(self, old: str, new: str) -> None:
        for node in [*self.graph.node, *self.before]:
            for at, name in enumerate(node.output):
                if name == old:
                    node.output[at] = new

    def _ancestors(self, output: str) -> set[str]:
        made_by = {name: node for node in self.graph.node for name in node.output}
        found: set[str] = set()
        left = [output]
        while left:
            name = left.pop()
            if name in found or name not in made_by:
                continue
            found.add(name)
            left += made_by[name].input
        return found


def _sorted(nodes: Sequence[Any], graph: Any) -> list[Any]:
    """The nodes in an order in which each comes after those that make its inputs."""
    known = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer} | {""}
    made = {name for node in nodes for name in node.output}
    waiting, done = list(nodes), []
    while waiting:
        ready: list[Any] = []
        later: list[Any] = []
        for node in waiting:
            needs = {*node.input, *_inner(node)} & made
            (ready if needs <= known else later).append(node)
            if needs <= known:
                known |= set(node.output)
        if not ready:
            raise Failed("the rewritten graph has a cycle")
        done += ready
        waiting = later
    return done


def _inner(node: Any) -> set[str]:
    """What the node's subgraphs take from outside."""
    found: set[str] = set()
    for attribute in node.attribute:
        if attribute.HasField("g"):
            for inner in attribute.g.node:
                found |= set(inner.input) | _inner(inner)
    return found


def check(
    proto: Any,
    seen: Seen,
    signature: Signature,
    padding: Padding,
    samples: Sequence[Sample],
    lengths: Sequence[int],
    folder: Path,
) -> None:
    """Run the packed graph on the probe's samples, two in one row and one in another: outputs must be the same."""
    import onnx

    packed = packing.Packed((((0, 0), (1, lengths[0])), ((2, 0),)), max(lengths[0] + lengths[1], lengths[2]) + 3, 2, 3)
    tensors = [Tensor(value.name, _dtype(value), None) for value in proto.graph.input]
    inputs, _ = packing.assemble_packed(samples, packed, Signature(tuple(tensors), signature.outputs), padding)
    path = folder / "check.onnx"
    onnx.save(proto, str(path), save_as_external_data=weight_bytes(proto) > EXTERNAL_ABOVE_BYTES, location="check.data")
    try:
        outputs = _run(path, inputs, optimise=True)
    except Exception as error:
        raise Failed(f"the packed graph does not run: {' '.join(str(error).split())[:300]}") from None
    finally:
        path.unlink()
        (folder / "check.data").unlink(missing_ok=True)
    rows = packing.split_packed(outputs, packed, lengths, padding)
    for index, own in zip(packed.indices, rows, strict=True):
        for output in signature.outputs:
            wanted = seen.values[output.name][index]
            if output.name in (padding.outputs or {}):
                wanted = wanted[: lengths[index]]
            got = own[output.name]
            if got.shape != wanted.shape:
                raise Failed(
                    f"packing changes the shape of output {output.name}: {got.shape} instead of {wanted.shape}"
                )
            scale = max(1e-6, float(np.abs(wanted).max(initial=0)))
            worst = float(np.abs(got.astype(np.float64) - wanted).max(initial=0)) / scale
            if not worst <= TOLERANCE:
                raise Failed(f"packing changes output {output.name} by {worst:.2g} of its magnitude")


def _dtype(value: Any) -> str:
    import onnx

    return str(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))


def _run(path: Path, inputs: Mapping[str, np.ndarray], optimise: bool) -> dict[str, np.ndarray]:
    import os

    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    if not optimise:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    known = {value.name for value in session.get_inputs()}
    names = [value.name for value in session.get_outputs()]
    found = session.run(names, {name: array for name, array in inputs.items() if name in known})
    return dict(zip(names, found, strict=True))
