"""Measures a device's limits in a worker: arithmetic and starting cost through a runtime, and memory by NumPy."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.diagnose.kinds import HEAVY
from hasten.diagnose.roofline import precision_of
from hasten.errors import HastenError
from hasten.isolate import Scope
from hasten.model import Facts, Model, Signature, Tensor
from hasten.runtimes import Settings, runtime
from hasten.runtimes.base import Runtime, Session

if TYPE_CHECKING:
    import numpy as np
    import onnx

SMALL, MIDDLE, LARGE = 1024, 2048, 4096
LONG_ENOUGH_S = 0.002
"""A matrix product should take this long at least, else starting the threads blurs the rate; and not much longer, else
no repeat escapes other work on the machine."""
BURST, PROFILED_EACH = 6, 4
CHAIN = 64
ROW = 16


def gemm(payload: dict[str, Any], scope: Scope) -> dict[str, Any]:
    """The GEMM rate of one runtime at each precision that it really executes, and what an operator costs to start.

    `payload`: runtime, threads, repeats, seconds (to spend at most). Returns `rates`: precision to {size, values in
    GFLOP/s}; `dispatch_us` and `operator_us`: values; `refused`: precision to the reason.
    """
    engine = runtime(payload["runtime"])
    settings: dict[str, Any] = {"threads": payload["threads"], "streams": 1}
    until = time.monotonic() + payload["seconds"]
    with tempfile.TemporaryDirectory(prefix="hasten-probe-") as folder:
        found: dict[str, Any] = {"rates": {}, "refused": {}, "dispatch_us": [], "operator_us": []}
        scope.progress(None, f"{engine.name}: the cost of starting an operator")
        _starting_costs(engine, settings, Path(folder), payload["repeats"], found)
        contestants = [
            *((precision, precision, matmul_model) for precision in engine.precisions),
            ("int8", "fp32", quantised_model),
        ]
        runs: dict[str, Callable[[bool], float]] = {}
        for precision, hint, make in contestants:
            scope.progress(None, f"{engine.name}: matrix product in {precision}")
            try:
                size, run = _sized(engine, precision, settings | {"precision": hint}, make, Path(folder))
            except HastenError as error:
                found["refused"][precision] = error.cause
                continue
            runs[precision] = run
            found["rates"][precision] = {"size": size, "values": []}
        # In turns, so that a burst of other work on the machine does not fall on one precision alone.
        for turn in range(payload["repeats"]):
            for precision, run in runs.items():
                if turn < 3 or time.monotonic() < until:
                    found["rates"][precision]["values"].append(run(turn % PROFILED_EACH == 0))
    return found


def memory(payload: dict[str, Any], scope: Scope) -> dict[str, Any]:
    """Bandwidth in GB/s over all of this process's cores: `read`, `copy` (read and written bytes) and `cache` (read).

    `payload`: threads, repeats, bytes (of a buffer larger than all caches), cache_bytes (of one in reach of a core).
    """
    import os

    # A BLAS that starts its own threads inside ours would measure their fight.
    os.environ.update(OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1", OMP_NUM_THREADS="1")
    from concurrent.futures import ThreadPoolExecutor

    import numpy as np

    threads, repeats = payload["threads"], payload["repeats"]
    count = payload["bytes"] // 8
    source, sink = np.ones(count), np.zeros(count)
    reads, writes = np.array_split(source, threads), np.array_split(sink, threads)
    near = [np.ones(max(8192, payload["cache_bytes"] // 8)) for _ in range(threads)]
    passes = max(1, (64 << 20) // near[0].nbytes)

    def stay_near(block: np.ndarray) -> None:
        for _ in range(passes):
            np.dot(block, block)

    found: dict[str, list[float]] = {"read": [], "copy": [], "cache": []}
    with ThreadPoolExecutor(threads) as pool:
        for turn in range(repeats + 1):
            taken = {
                "read": (source.nbytes, _seconds(lambda: list(pool.map(np.max, reads)))),
                "copy": (2 * source.nbytes, _seconds(lambda: list(pool.map(np.copyto, writes, reads)))),
                "cache": (
                    passes * threads * near[0].nbytes,
                    _seconds(lambda: list(pool.map(stay_near, near))),
                ),
            }
            for name, (size, seconds) in taken.items():
                if turn:  # the first pass faults pages in
                    found[name].append(size / seconds / 1e9)
    return found


def matmul_model(size: int) -> onnx.ModelProto:
    """x @ W with a constant W, both [size, size], in fp32: what a runtime packs and runs at its best."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    weights = numpy_helper.from_array(_noise(size, size) / np.float32(size), "w")
    node = helper.make_node("MatMul", ["x", "w"], ["y"], "matmul")
    return _model([node], [weights], [size, size], TensorProto.FLOAT)


def quantised_model(size: int) -> onnx.ModelProto:
    """The same product in int8 by quantise and dequantise pairs, the form that both kinds of toolchains recognise.

    The result is quantised too, so that a kernel may keep its output in eight bits as it does inside a model.
    """
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    constants = [
        numpy_helper.from_array(rng.integers(-127, 128, (size, size), dtype=np.int8), "w"),
        numpy_helper.from_array(np.full(size, 1e-3, np.float32), "w_scale"),
        numpy_helper.from_array(np.zeros(size, np.int8), "w_zero"),
        numpy_helper.from_array(np.asarray(np.float32(0.02)), "x_scale"),
        numpy_helper.from_array(np.asarray(np.uint8(128)), "x_zero"),
        numpy_helper.from_array(np.asarray(np.float32(0.05)), "y_scale"),
        numpy_helper.from_array(np.asarray(np.uint8(128)), "y_zero"),
    ]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "x_scale", "x_zero"], ["xq"], "xq"),
        helper.make_node("DequantizeLinear", ["xq", "x_scale", "x_zero"], ["xd"], "xd"),
        helper.make_node("DequantizeLinear", ["w", "w_scale", "w_zero"], ["wd"], "wd", axis=1),
        helper.make_node("MatMul", ["xd", "wd"], ["m"], "matmul"),
        helper.make_node("QuantizeLinear", ["m", "y_scale", "y_zero"], ["mq"], "mq"),
        helper.make_node("DequantizeLinear", ["mq", "y_scale", "y_zero"], ["y"], "y"),
    ]
    return _model(nodes, constants, [size, size], TensorProto.FLOAT)


def chain_model(length: int) -> onnx.ModelProto:
    """`length` small Softmax operators in a row: no runtime fuses two of them, and their arithmetic is nothing."""
    from onnx import TensorProto, helper

    names = ["x", *(f"h{i}" for i in range(1, length)), "y"]
    nodes = [helper.make_node("Softmax", [a], [b], f"s{i}", axis=-1) for i, (a, b) in enumerate(pairwise(names))]
    return _model(nodes, [], [1, ROW], TensorProto.FLOAT)


def _starting_costs(
    engine: Runtime, settings: Mapping[str, Any], folder: Path, repeats: int, found: dict[str, Any]
) -> None:
    """The least time of one trivial operator through the session, and of one more in a long chain."""
    sessions = []
    try:
        for length in (1, CHAIN):
            model = _written(chain_model(length), folder / f"chain{length}.onnx", [1, ROW])
            sessions.append(engine.load(model, Settings(**settings)))
        batch = {"x": _noise(1, ROW)}
        for _ in range(repeats):
            one, many = (min(_times(session, batch, 200)) for session in sessions)
            found["dispatch_us"].append(one * 1e6)
            found["operator_us"].append(max(0.0, many - one) / (CHAIN - 1) * 1e6)
    except HastenError as error:
        found["refused"]["dispatch"] = error.cause
    finally:
        for session in sessions:
            session.close()


def _times(session: Session, batch: Mapping[str, np.ndarray], count: int) -> Iterator[float]:
    for _ in range(count):
        yield _seconds(lambda: session.run(batch))


def _sized(
    engine: Runtime, precision: str, settings: Mapping[str, Any], make: Callable[[int], Any], folder: Path
) -> tuple[int, Callable[[bool], float]]:
    """The smallest size that runs long enough, and a function that measures the best rate there in GFLOP/s.

    The profiler gives the product's own time, but costs a second compilation; whole runs are cheap, and a little slower
    for copying and quantising. Both are floors under the rate, so the better one counts.
    """
    for size in (SMALL, MIDDLE, LARGE):
        model = _written(make(size), folder / f"{precision}-{size}.onnx", [size, size])
        session = engine.load(model, Settings(**settings))
        batch = {"x": _noise(size, size)}

        def run(profiled: bool, session: Session = session, batch: dict[str, Any] = batch, size: int = size) -> float:
            times = list(_times(session, batch, BURST))
            if profiled:
                times.append(_heavy_seconds(session, batch, precision))
            return 2e-9 * size**3 / min(times)

        if 2e-9 * size**3 / run(True) >= LONG_ENOUGH_S or size == LARGE:
            return size, run
        session.close()
    raise AssertionError("the last size returns")


def _heavy_seconds(session: Session, batch: Mapping[str, Any], precision: str) -> float:
    """The time of the product itself, by the runtime's profiler; refused where it ran in another precision."""
    times = [time for time in session.operators(batch, repeats=1) if time.kind in HEAVY]
    if not times:
        raise HastenError("the runtime lists no matrix product")
    used = {precision_of(time.executed, time.kind) for time in times}
    if used != {precision}:
        raise HastenError(f"asked for {precision}, it computed in {', '.join(sorted(used))}")
    return sum(time.microseconds for time in times) / 1e6


def _model(nodes: list[Any], constants: list[Any], shape: list[int], element: int) -> onnx.ModelProto:
    from onnx import helper

    graph = helper.make_graph(
        nodes,
        "probe",
        [helper.make_tensor_value_info("x", element, shape)],
        [helper.make_tensor_value_info("y", element, shape)],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _written(proto: onnx.ModelProto, path: Path, shape: list[int]) -> Model:
    """The handle of a generated model; it is nobody's input, so its hash is not needed."""
    path.write_bytes(proto.SerializeToString())
    dims = tuple(shape)
    signature = Signature((Tensor("x", "float32", dims),), (Tensor("y", "float32", dims),))
    return Model(path, "onnx", "", signature, Facts(0, path.stat().st_size))


def _noise(*shape: int) -> np.ndarray:
    import numpy as np

    return np.random.default_rng(1).standard_normal(shape, dtype=np.float32)


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
