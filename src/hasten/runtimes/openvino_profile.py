"""Reads OpenVINO's counters: the typical time of each executed node and what the model called it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise
from statistics import median
from typing import Any

from hasten.runtimes.base import OperatorTime, fitted


def profile(compiled: Any, tensors: Mapping[int, Any], repeats: int) -> list[OperatorTime]:
    """Run `tensors` with counters on: once to warm up, then `repeats` times. Longest operator first."""
    request = compiled.create_infer_request()
    averages: dict[str, dict[int, float]] = defaultdict(dict)
    about: dict[str, Any] = {}
    whole: list[float] = []
    wanted = marks(repeats + 1)
    for run in range(1, repeats + 2):
        request.infer(tensors)
        whole.append(request.latency * 1e3)
        for info in request.get_profiling_info() if run in wanted else ():
            if str(info.status).endswith("EXECUTED"):
                averages[info.node_name][run] = info.real_time.total_seconds() * 1e6
                about[info.node_name] = info
    sources = _sources(compiled)
    found = [
        OperatorTime(name, about[name].node_type, typical(each), about[name].exec_type, sources.get(name, ()))
        for name, each in averages.items()
    ]
    return fitted(found, median(whole[1:]))


def marks(runs: int) -> tuple[int, ...]:
    """After which runs to read the counters: the first, and then after twice as many each time.

    >>> marks(101)
    (1, 3, 7, 15, 31, 63, 101)
    """
    found = [1]
    while 3 * found[-1] + 1 < runs:
        found.append(2 * found[-1] + 1)
    return (*found, runs)


def typical(averages: Mapping[int, float]) -> float:
    """Microseconds of one run, from the average over all runs so far after some of them.

    OpenVINO reports the average since compilation, in whole microseconds rounded down, and the first run takes up to
    a thousand times as long as the others (a layer of 12 us was reported as 1.67 ms). What the runs between two
    readings took is a difference; the median of those is not moved by a few interrupted runs.

    >>> typical({1: 4886.0, 3: 1636.0, 7: 708.0})
    12.0
    """
    totals = {run: run * average + (run - 1) / 2 for run, average in averages.items()}
    spans = [
        (totals[after] - totals[before]) / (after - before) for before, after in pairwise(sorted(totals)) if after > 1
    ]
    return max(0.0, median(spans)) if spans else next(iter(averages.values()), 0.0)


def _sources(compiled: Any) -> dict[str, tuple[str, ...]]:
    """The model's own node names that were fused into each executed node."""
    found = {}
    for node in compiled.get_runtime_model().get_ops():
        info = node.get_rt_info()
        if "originalLayersNames" in info:
            names = str(info["originalLayersNames"].astype(str))
            found[node.get_friendly_name()] = tuple(name for name in names.split(",") if name)
    return found
