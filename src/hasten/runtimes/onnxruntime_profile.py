"""Reads ONNX Runtime's profile: the median time of each executed node and what the model called it."""

from __future__ import annotations

import json
import math
import re
import tempfile
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from hasten.errors import Failed
from hasten.runtimes.base import OperatorTime, fitted

_SUFFIX = "_kernel_time"


def profile(
    open_session: Callable[[str, str | None], Any], batch: Mapping[str, Any], repeats: int
) -> list[OperatorTime]:
    """Run `batch` under the profiler: once to warm up, then `repeats` times. Longest operator first.

    `open_session(profile_prefix, optimised_path)` opens a session that profiles, and writes the optimised graph.
    """
    with tempfile.TemporaryDirectory(prefix="hasten-profile-") as folder:
        optimised = str(Path(folder) / "optimised.onnx")
        try:
            session = open_session(str(Path(folder) / "run"), optimised)
        except Failed:  # graphs compiled by a device's provider cannot be written: do without the tensor names
            session = open_session(str(Path(folder) / "run"), None)
        for _ in range(repeats + 1):
            session.run(None, batch)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
        return times(events, *_node_outputs(Path(optimised)))


def times(
    events: list[dict[str, Any]],
    outputs: Mapping[str, tuple[str, ...]],
    unnamed: Mapping[str, Sequence[tuple[str, ...]]] | None = None,
) -> list[OperatorTime]:
    """Median time of each node over the runs after the first.

    `outputs` maps a node's name to its output tensors; `unnamed` maps an operator's type to those of its nodes that
    have no name, in the order of execution.
    """
    runs = sorted((e["ts"], e["dur"]) for e in events if e.get("name") == "model_run")
    spent: dict[str, list[float]] = defaultdict(lambda: [0.0] * len(runs))
    about: dict[str, Mapping[str, Any]] = {}
    nodes = [e for e in events if e.get("cat") == "Node" and e["name"].endswith(_SUFFIX) and e["ts"] >= runs[0][0]]
    for event in sorted(nodes, key=lambda e: e["ts"]):
        name = event["name"].removesuffix(_SUFFIX)
        spent[name][bisect_right(runs, (event["ts"], math.inf)) - 1] += event["dur"]
        about[name] = event.get("args", {})
    outputs = {**outputs, **_given_names(about, outputs, unnamed or {})}
    found = [
        OperatorTime(
            name, about[name].get("op_name", ""), median(each[1:]), _executed(about[name]), _sources(name, outputs)
        )
        for name, each in spent.items()
    ]
    return fitted(found, median([duration for _, duration in runs[1:]]))


def _given_names(
    about: Mapping[str, Mapping[str, Any]],
    outputs: Mapping[str, tuple[str, ...]],
    unnamed: Mapping[str, Sequence[tuple[str, ...]]],
) -> dict[str, tuple[str, ...]]:
    """Output tensors of the nodes that ONNX Runtime named TYPE_NUMBER itself: they run in the order of the graph."""
    given: dict[str, list[str]] = defaultdict(list)
    for name, args in about.items():
        kind = args.get("op_name", "")
        if name not in outputs and re.fullmatch(rf"{re.escape(kind)}_\d+", name):
            given[kind].append(name)
    return {
        name: own
        for kind, names in given.items()
        if len(names) == len(unnamed.get(kind, ()))
        for name, own in zip(names, unnamed[kind], strict=True)
    }


def _sources(name: str, outputs: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """What a node comes from: fusion appends to the name of a node, or of its output where the layout changes too."""
    root = re.sub(r"(_nchwc|/\w*Fusion\w*/?)$", "", name)
    own = [output for output in outputs.get(name, ()) if not output.startswith("reorder_token")]
    return tuple(dict.fromkeys([*([root] if root != name else []), *own]))


def _executed(args: Mapping[str, Any]) -> str:
    """The provider and the type it computed in, such as `CPU float`."""
    provider = args.get("provider", "").removesuffix("ExecutionProvider")
    kinds = [kind for entry in args.get("input_type_shape", []) for kind in entry]
    return " ".join(filter(None, [provider, kinds[0] if kinds else ""]))


def _node_outputs(path: Path) -> tuple[dict[str, tuple[str, ...]], dict[str, list[tuple[str, ...]]]]:
    """Output tensors of each node of the optimised graph: fusion renames nodes, but keeps the last tensor's name.

    By name, and by type in the graph's order for those that have none.
    """
    named: dict[str, tuple[str, ...]] = {}
    unnamed: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    try:
        import onnx
    except ImportError:
        return named, unnamed
    if path.exists():
        for node in onnx.load(str(path), load_external_data=False).graph.node:
            own = tuple(name for name in node.output if name)
            if node.name:
                named[node.name] = own
            else:
                unnamed[node.op_type].append(own)
    return named, unnamed
