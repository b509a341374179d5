"""Damaged ONNX files give a model or a readable error, whatever the damage."""

from __future__ import annotations

import random
import resource
from pathlib import Path

import onnx
import onnx_models as models
import pytest

from hasten import formats
from hasten.errors import InvalidInput
from hasten.isolate import Limits, Worker
from hasten.model import Model

FILES = 500


def damaged(generator: random.Random, protos: list[bytes]) -> bytes:
    """Flip bits, cut, overwrite, repeat, or make a shape, an opset or a nesting absurd."""
    content = bytearray(generator.choice(protos))
    kind = generator.choice(["flip", "flip", "cut", "overwrite", "repeat", "shape", "opset", "nest"])
    if kind == "flip":
        for _ in range(generator.choice([1, 1, 2, 8, 64])):
            content[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
    elif kind == "cut":
        del content[generator.randrange(len(content)) :]
    elif kind == "overwrite":
        at = generator.randrange(len(content))
        content[at : at + 8] = generator.randbytes(8)
    elif kind == "repeat":
        at = generator.randrange(len(content))
        content[at:at] = content[at : at + 200] * generator.randrange(1, 50)
    else:
        proto = onnx.ModelProto.FromString(bytes(content))
        absurd = generator.choice([-(1 << 63), -2, 0, 1 << 31, 1 << 40, (1 << 63) - 1])
        if kind == "shape":
            tensors = [
                *proto.graph.initializer,
                *(a.t for n in proto.graph.node for a in n.attribute if a.HasField("t")),
            ]
            shapes = [value.type.tensor_type.shape.dim for value in (*proto.graph.input, *proto.graph.output)]
            if tensors and generator.random() < 0.5:
                generator.choice(tensors).dims[:] = [absurd] * generator.randrange(1, 4)
            else:
                generator.choice(shapes).add().dim_value = absurd
        elif kind == "opset":
            proto.opset_import[0].version = absurd
        else:
            for _ in range(generator.choice([3, 20])):
                graph = onnx.GraphProto(name="g", output=[models.value("y", None)])
                graph.node.add(op_type="If", input=["x"], output=["y"]).attribute.add(
                    name="then_branch", type=onnx.AttributeProto.GRAPH, g=proto.graph
                )
                proto.graph.CopyFrom(graph)
        content = bytearray(proto.SerializeToString())
    return bytes(content) or b"\0"


def test_500_damaged_files_give_a_model_or_a_readable_error(tmp_path: Path) -> None:
    generator = random.Random(20)
    protos = [make().SerializeToString() for make in (models.mlp, models.branching, models.cnn)]
    path = tmp_path / "m.onnx"
    outcomes = {"model": 0, "refused": 0}
    with Worker(limits=Limits(memory_bytes=4 << 30, seconds=60)) as worker:
        for _ in range(FILES):
            path.write_bytes(damaged(generator, protos))
            try:
                model = Model.from_json(worker.call("hasten.formats:inspect_worker", {"path": str(path)}))
                shapes = {
                    t.name: [n if isinstance(n, int) else 2 for n in t.shape or ()] for t in model.signature.inputs
                }
                worker.call("hasten.formats:operators_worker", {"path": str(path), "shapes": shapes})
                outcomes["model"] += 1
            except InvalidInput:
                outcomes["refused"] += 1
    assert sum(outcomes.values()) == FILES
    assert min(outcomes.values()) > 50
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 < 2 << 30


def test_nesting_without_end_is_refused(tmp_path: Path) -> None:
    graph = b""
    for _ in range(3000):  # a graph in an attribute of a node, in a graph in an attribute of a node, ...
        for tag in (b"\x32", b"\x2a", b"\x0a"):
            graph = tag + length(len(graph)) + graph
    (tmp_path / "m.onnx").write_bytes(b"\x08\x08\x3a" + length(len(graph)) + graph)
    with pytest.raises(InvalidInput, match="nested"):
        formats.load(tmp_path / "m.onnx")


def length(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes(out) + bytes([value])
