"""Tiny models and cases for the tests of levers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from hasten import formats
from hasten.data import SampleSet
from hasten.device import Device
from hasten.goal import Goal
from hasten.levers import Case
from hasten.measurement import Figure
from hasten.model import Facts, Model, Operator, Signature, Tensor
from hasten.recipe import Recipe
from hasten.workload import Samples, Workload


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def save(
    path: Path, nodes: list[Any], weights: dict[str, np.ndarray], inputs: Any, outputs: Any, opset: int = 17
) -> Path:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in outputs],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.save(model, str(path))
    return path


def cnn(path: Path, opset: int = 17, constants: bool = False) -> Path:
    """Two convolutions with BatchNorm, a pool and a classifier; an Identity to clean up."""
    r = rng()
    weights = {
        "w1": r.normal(0, 0.3, (8, 3, 3, 3)),
        "w2": r.normal(0, 0.2, (16, 8, 3, 3)),
        "w3": r.normal(0, 0.3, (16, 5)),
        **{name: np.ones(8) for name in ("scale", "var")},
        **{name: np.zeros(8) for name in ("bias", "mean")},
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["c1"], name="block1.conv", pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c1", "scale", "bias", "mean", "var"], ["n1"], name="block1.norm"),
        helper.make_node("Relu", ["n1"], ["r1"], name="block1.relu"),
        helper.make_node("Identity", ["r1"], ["i1"], name="nothing"),
        helper.make_node("Conv", ["i1", "w2"], ["c2"], name="block2.conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c2"], ["r2"], name="block2.relu"),
        helper.make_node("GlobalAveragePool", ["r2"], ["p"], name="pool"),
        helper.make_node("Flatten", ["p"], ["f"], name="flat"),
        helper.make_node("MatMul", ["f", "w3"], ["y"], name="head"),
    ]
    if constants:
        made = [
            helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array.astype(np.float32)))
            for name, array in weights.items()
        ]
        nodes, weights = made + nodes, {}
        for node in nodes:
            node.name = ""
    return save(path, nodes, weights, [("x", ["batch", 3, 16, 16])], [("y", ["batch", 5])], opset)


CLASSES = 8
PLAIN = Recipe()


def mlp(path: Path, layers: int = 10, width: int = 32, fragile: int | None = None) -> Path:
    """A chain of products that tells `CLASSES` apart with a wide margin.

    The inputs of layer `fragile` have one channel 3,000 times the others, which nothing reads: one scale for the whole
    tensor then leaves nothing of the others.
    """
    r = rng()
    nodes, weights, tensor = [], {}, "x"
    for i in range(layers):
        last = i == layers - 1
        w = np.repeat(np.eye(CLASSES), width // CLASSES, axis=0) if last else np.eye(width)
        w = w + r.normal(0, 0.02, w.shape)
        if fragile is not None and i == fragile - 1:
            w[:, 0] = np.abs(w[:, 0]) * 3000.0
        if fragile is not None and i == fragile:
            w[0, :] = 0.0
        weights[f"w{i}"] = w
        out = "y" if last else f"h{i}"
        nodes.append(helper.make_node("MatMul", [tensor, f"w{i}"], [out if last else f"m{i}"], name=f"layer{i}"))
        if not last:
            nodes.append(helper.make_node("Relu", [f"m{i}"], [out], name=f"relu{i}"))
        tensor = out
    return save(path, nodes, weights, [("x", ["batch", width])], [("y", ["batch", CLASSES])])


def case_of(path: Path, workdir: Path, recipe: Recipe = PLAIN, count: int = 90, metric: str = "accuracy") -> Case:
    """A real case: the model, random samples of its input's shape, and their split."""
    model = formats.inspect(path)
    shape = [int(size) for size in (model.signature.inputs[0].shape or ())[1:]]
    r = rng()
    labels = r.integers(0, CLASSES, count)
    samples = [{"x": np.abs(r.normal(0, 0.2, shape)).astype(np.float32)} for _ in range(count)]
    for sample, label in zip(samples, labels, strict=True):
        flat = sample["x"].reshape(CLASSES, -1)
        flat[label] += 1.0
    stored = SampleSet.write(workdir / "data", samples, list(labels))
    work = Workload(model, stored, metric, "offline")
    return Case(work, Goal(), cpu(), recipe, workdir / "variants", work.split(), runtimes=("onnxruntime", "openvino"))


def cpu(fp32: float = 100.0, bf16: float = 400.0, int8: float = 800.0, flags: tuple[str, ...] = ()) -> Device:
    limits = {
        "gemm_fp32_gflops": Figure(fp32, "GFLOP/s", "measured"),
        "gemm_bf16_gflops": Figure(bf16, "GFLOP/s", "measured"),
        "gemm_int8_gops": Figure(int8, "GOP/s", "measured"),
        "read_gb_s": Figure(20.0, "GB/s", "measured"),
    }
    return Device("cpu", cpus=(0, 1), flags=flags, limits=limits, caches_bytes={"L3": 1 << 20})


def paper_case(kinds: dict[str, int], recipe: Recipe = PLAIN, device: Device | None = None, **more: Any) -> Case:
    """A case without files, for `propose` alone."""
    signature = Signature((Tensor("x", "float32", ("batch", 8)),), (Tensor("y", "float32", ("batch", 8)),))
    model = Model(Path("model.onnx"), "onnx", "0" * 64, signature, Facts(1_000_000, 4_000_000, 17, "", kinds))
    samples = Samples(Path("data"), "1" * 64, 100, (Tensor("x", "float32", (8,)),), "data", True)
    work = Workload(model, samples, "accuracy", "offline")
    goal = more.pop("goal", Goal())
    runtimes = more.pop("runtimes", ("onnxruntime", "openvino"))
    return Case(work, goal, device or cpu(), recipe, Path("work"), work.split(), runtimes=runtimes, **more)


def matmuls(count: int, flops: int = 10_000_000, weight_bytes: int = 4_000_000) -> tuple[Operator, ...]:
    return tuple(
        Operator(f"m{i}", "MatMul", flops, weight_bytes + 1000, weight_bytes, (f"o{i}",)) for i in range(count)
    )


def outputs(model: Model, runtime: str, batch: dict[str, np.ndarray]) -> np.ndarray:
    """The first output, run straight on the library."""
    if runtime == "openvino":
        import openvino as ov

        compiled = ov.Core().compile_model(str(model.path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        return np.array(compiled(batch)[0])
    import onnxruntime as ort

    session = ort.InferenceSession(str(model.path), providers=["CPUExecutionProvider"])
    return np.array(session.run(None, batch)[0])
