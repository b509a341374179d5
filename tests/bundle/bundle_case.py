"""Tiny models, their samples and studies, for tests of bundles."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from hasten import formats
from hasten.data import SampleSet
from hasten.device import Device
from hasten.goal import Goal
from hasten.measure import outputs as saved
from hasten.measurement import Figure, Measurement, Quality, Trial
from hasten.recipe import Recipe
from hasten.runner import Runner, open_runner
from hasten.study import Study
from hasten.variant import Variant
from hasten.workload import Padding, Workload

WIDTH = 4


def text_model(path: Path) -> Path:
    """ids, mask [batch, length] -> states [batch, length, 4] and pooled [batch, 4], which padding does not change."""
    table = np.random.default_rng(0).normal(size=(32, WIDTH)).astype(np.float32)
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["embedded"]),
        helper.make_node("Tanh", ["embedded"], ["states"]),
        helper.make_node("Cast", ["mask"], ["weights"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["weights", "last"], ["column"]),
        helper.make_node("Mul", ["states", "column"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "middle"], ["total"], keepdims=0),
        helper.make_node("ReduceSum", ["weights", "middle"], ["count"], keepdims=1),
        helper.make_node("Div", ["total", "count"], ["pooled"]),
    ]
    graph = helper.make_graph(
        nodes,
        "text",
        [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"]) for name in ("ids", "mask")],
        [
            helper.make_tensor_value_info("states", TensorProto.FLOAT, ["batch", "length", WIDTH]),
            helper.make_tensor_value_info("pooled", TensorProto.FLOAT, ["batch", WIDTH]),
        ],
        [
            numpy_helper.from_array(table, "table"),
            numpy_helper.from_array(np.array([2], np.int64), "last"),
            numpy_helper.from_array(np.array([1], np.int64), "middle"),
        ],
    )
    return _save(path, graph)


def image_model(path: Path, external: bool = False) -> Path:
    """image [batch, 3] -> logits [batch, 5] and label [batch]."""
    weights = np.random.default_rng(1).normal(size=(3, 5)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["image", "weights"], ["logits"]),
            helper.make_node("ArgMax", ["logits"], ["label"], axis=1, keepdims=0),
        ],
        "image",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3])],
        [
            helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 5]),
            helper.make_tensor_value_info("label", TensorProto.INT64, ["batch"]),
        ],
        [numpy_helper.from_array(weights, "weights")],
    )
    return _save(path, graph, external)


def _save(path: Path, graph: onnx.GraphProto, external: bool = False) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    where = {"save_as_external_data": True, "location": "data/weights.bin", "size_threshold": 0} if external else {}
    (path.parent / "data").mkdir(exist_ok=True)
    onnx.save(model, path, **where)
    return path


def texts(count: int = 13, seed: int = 0) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 12, count)
    return [{"ids": rng.integers(1, 32, n), "mask": np.ones(n, np.int64)} for n in lengths]


def images(count: int = 9) -> list[dict[str, np.ndarray]]:
    return [{"image": row} for row in np.random.default_rng(2).normal(size=(count, 3)).astype(np.float32)]


PADDING = Padding({"ids": 0, "mask": 0}, 0, True, outputs={"states": 0})


def study(folder: Path, kind: str = "image", external: bool = False, recipe: Recipe | None = None) -> Study:
    """A study of one trial, `recipe` on the model as brought."""
    path = image_model(folder / "image.onnx", external) if kind == "image" else text_model(folder / "text.onnx")
    model = formats.inspect(path)
    data = SampleSet.write(folder / "samples", images() if kind == "image" else texts())
    workload = Workload(model, data, "cosine", "offline", padding=PADDING if kind == "text" else None)
    recipe = recipe or Recipe(runtime={"name": "onnxruntime", "threads": 1}, runner={"batch": 4})
    trial = Trial(
        recipe.id,
        recipe,
        "ok",
        measurement=Measurement(
            {"throughput_per_s": Figure(1234.5, "/s", "measured", (1200.0, 1270.0))},
            Quality("accuracy", Figure(0.9, "", "measured"), Figure(0.1, "pt", "measured", (-0.1, 0.3)), "labels", 9),
        ),
        speedup=Figure(2.0, "x", "measured", (1.9, 2.1)),
    )
    brought = Recipe(runtime={"name": "onnxruntime"})
    first = Trial(brought.id, brought, "ok", origin="brought", measurement=trial.measurement)
    device = Device("test device", "cpu", (0,), 1 << 30)
    return Study(workload, Goal(), device, {"numpy": np.__version__}, 0, (first, trial), (), trial.id, "it won")


def chosen(made: Study) -> Trial:
    assert made.best is not None
    return made.best


def variant(made: Study) -> Variant:
    return Variant({"main": made.workload.model})


def open_here(made: Study, recipe: Recipe) -> Runner:
    """hasten's own runner under `recipe`."""
    return open_runner(variant(made), recipe, made.workload.model.signature, made.workload.padding)


def run_here(made: Study) -> list[dict[str, np.ndarray]]:
    """The outputs of every sample, through hasten's own runner under the chosen recipe."""
    samples = SampleSet.open(made.workload.samples.path)
    with open_here(made, chosen(made).recipe) as runner:
        return runner.run([samples[i] for i in range(len(samples))])


def reference(made: Study, folder: Path, spoil: float = 0.0) -> Path:
    """A file of the trial's outputs, `spoil` added to every number."""
    path = folder / "outputs.npz"
    found = [
        {
            name: array + np.asarray(spoil, array.dtype) if array.dtype.kind == "f" else array
            for name, array in out.items()
        }
        for out in run_here(made)
    ]
    saved.save(path, found)
    return path
