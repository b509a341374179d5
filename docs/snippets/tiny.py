"""Writes model.onnx, a small classifier, and samples.npz, 2,000 labelled samples for it."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

random = np.random.default_rng(0)
nodes, weights, last = [], [], "x"
for at, (rows, columns) in enumerate([(64, 512), (512, 512), (512, 10)]):
    weights.append(random.standard_normal((rows, columns), dtype=np.float32) * (2 / rows) ** 0.5)
    out = "logits" if columns == 10 else f"hidden{at}"
    nodes.append(helper.make_node("MatMul", [last, f"w{at}"], [out], name=f"product{at}"))
    if columns != 10:
        nodes.append(helper.make_node("Relu", [out], [f"relu{at}"], name=f"relu{at}"))
    last = f"relu{at}"
graph = helper.make_graph(
    nodes,
    "tiny",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 64])],
    [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 10])],
    [numpy_helper.from_array(w, f"w{at}") for at, w in enumerate(weights)],
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
onnx.save(model, "model.onnx")

x = random.standard_normal((2000, 64), dtype=np.float32)
hidden = x
for w in weights[:-1]:
    hidden = np.maximum(hidden @ w, 0)
label = (hidden @ weights[-1]).argmax(axis=1)
label[:100] = random.integers(0, 10, 100)  # a few wrong labels, as real data has
np.savez("samples.npz", x=x, label=label)
