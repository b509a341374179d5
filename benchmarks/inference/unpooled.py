"""The usual export of an encoder: its last hidden state leaves the graph, and NumPy takes the mean."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from hasten.measure import bench


def cut(payload: dict[str, Any], scope: Any) -> dict[str, Any]:
    """Worker function: write the model without its pooling to `payload["into"]`, and describe it."""
    import onnx

    from hasten import formats

    path = Path(payload["into"])
    proto = onnx.load(payload["model"])
    makers = {output: node for node in proto.graph.node for output in node.output}
    node = makers[proto.graph.output[0].name]
    while node.op_type != "MatMul":  # pooling is the last product of a row of weights with the hidden state
        node = makers[node.input[0]]
    hidden = node.input[1]
    inferred = onnx.shape_inference.infer_shapes(proto)
    proto.graph.output[0].CopyFrom(next(info for info in inferred.graph.value_info if info.name == hidden))
    needed, kept = {hidden}, []
    for each in reversed(proto.graph.node):
        if needed & set(each.output):
            needed.update(each.input)
            kept.append(each)
    del proto.graph.node[:]
    proto.graph.node.extend(reversed(kept))
    onnx.save(proto, str(path))
    described: dict[str, Any] = formats.inspect(path).to_json()
    return described | {"hidden": hidden}


def open(payload: dict[str, Any], scope: Any) -> dict[str, Any]:
    """As `bench.open`; `payload["hidden"]` names the output to pool."""
    scope.state["hidden"] = payload["hidden"]
    return bench.open(payload, scope)


def round(payload: dict[str, Any], scope: Any) -> dict[str, Any]:
    """Run the scene once, pooling included."""
    opened = scope.state["opened"]
    start = time.perf_counter()
    _pool(opened.runner.run(opened.scene), scope)
    return {"seconds": time.perf_counter() - start, "count": len(opened.scene)}


def outputs(payload: dict[str, Any], scope: Any) -> dict[str, Any]:
    from hasten.measure.outputs import save

    opened = scope.state["opened"]
    rows = _pool(opened.runner.run([opened.samples[i] for i in payload["indices"]]), scope)
    save(Path(payload["path"]), [{"embedding": row} for row in rows])
    return {"count": len(rows)}


def _pool(results: list[dict[str, Any]], scope: Any) -> list[Any]:
    return [result[scope.state["hidden"]].mean(axis=0) for result in results]
