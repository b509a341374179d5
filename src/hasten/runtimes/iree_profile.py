"""Times of the kernels that IREE made of a model, as its own tools record them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from hasten.errors import Failed
from hasten.runtimes.base import OperatorTime, fitted

if TYPE_CHECKING:
    import numpy as np

RUN_TOOL = "iree._runtime.scripts.iree_benchmark_module"
READ_TOOL = "iree._runtime.scripts.iree_profile"
KINDS = {"matmul": "MatMul", "batch_matmul": "MatMul", "mmt4d": "MatMul", "contract": "MatMul", "conv": "Conv"}
"""How kernels' names begin that are products in the words of ONNX."""


def profile(path: Path, inputs: Sequence[np.ndarray], threads: int, repeats: int) -> list[OperatorTime]:
    """Median microseconds of each kernel in one run of the compiled file `path` with these inputs, longest first.

    The first of `repeats` + 1 runs does not count. Raises `Failed` where the tools do not work.
    """
    import numpy as np

    with tempfile.TemporaryDirectory(prefix="hasten-iree-") as name:
        folder = Path(name)
        given = []
        for number, array in enumerate(inputs):
            np.save(folder / f"{number}.npy", array)
            given.append(f"--input=@{folder / f'{number}.npy'}")
        record = folder / "record.ireeprof"
        device = ["--device=local-sync"]
        if threads > 1:
            device = ["--device=local-task", f"--task_topology_group_count={threads}"]
        asked = [f"--benchmark_min_time={repeats + 1}x", "--device_profiling_mode=host-execution,executable-metadata"]
        asked += [f"--device_profiling_output={record}", f"--function={entry_of(path)}", f"--module={path}"]
        _said([RUN_TOOL, *asked, *given, *device])
        said = _said([READ_TOOL, "dispatch", "--format=jsonl", "--dispatch_events", str(record)])
    rows = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    return kernel_times([row for row in rows if row.get("type") == "host_dispatch_event" and row["valid"]], repeats + 1)


def kernel_times(events: Sequence[dict[str, object]], runs: int) -> list[OperatorTime]:
    """Events of `runs` equal runs, in order, as the median time of each kernel in one; the first run is left out."""
    each = len(events) // runs
    times: dict[str, list[float]] = defaultdict(lambda: [0.0] * runs)
    wholes = []
    for run in range(runs):
        for event in events[run * each : (run + 1) * each]:
            times[str(event["key"])][run] += float(str(event["duration_ns"])) / 1000
        if each:
            last, first = events[(run + 1) * each - 1], events[run * each]
            wholes.append((float(str(last["end_host_time_ns"])) - float(str(first["start_host_time_ns"]))) / 1000)
    found = [
        OperatorTime(key, kind_of_kernel(key), median(all_[1:] or all_), "llvm-cpu") for key, all_ in times.items()
    ]
    return fitted(found, median(wholes[1:] or wholes)) if wholes else []


def kind_of_kernel(key: str) -> str:
    """What a kernel does, from its name.

    >>> kind_of_kernel("main$async_dispatch_4_conv_Dx64x14x14x64x3x3_f32"), kind_of_kernel("x_dispatch_0_slow_memcpy")
    ('Conv', 'slow_memcpy')
    """
    match = re.search(r"_dispatch_\d+_([a-z]\w*?)(_[D\d]+(x[D\d]+)*(_\w+)?)?$", key)
    kind = match[1] if match else key
    return next((name for start, name in KINDS.items() if kind.startswith(start)), kind)


def entry_of(path: Path) -> str:
    """The name of the function that runs the compiled model."""
    import iree.runtime

    module = iree.runtime.VmModule.mmap(iree.runtime.VmInstance(), str(path))
    return str(next(name for name in module.function_names if not name.startswith("__") and "$" not in name))


def _said(command: Sequence[str]) -> str:
    ended = subprocess.run(
        [sys.executable, "-P", "-m", *command], capture_output=True, text=True, errors="replace", check=False
    )
    if ended.returncode:
        lines = [line.strip() for line in ended.stderr.splitlines() if line.strip()]
        raise Failed(f"iree cannot time its kernels: {(lines or ['it does not say why'])[-1][:300]}")
    return ended.stdout
