"""Reads ONNX Runtime's profile: the mean time of each executed node and what the model called it."""

from __future__ import annotations

import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hasten.errors import Failed
from hasten.runtimes.base import OperatorTime

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
        return times(events, _node_outputs(Path(optimised)))


def times(events: list[dict[str, Any]], outputs: Mapping[str, tuple[str, ...]]) -> list[OperatorTime]:
    """Mean time of each node over the runs after the first. `outputs` maps a node's name to its output tensors."""
    runs = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e.get("name") == "model_run")
    warm_until, count = runs[0][1], len(runs) - 1
    spent: dict[str, float] = defaultdict(float)
    about: dict[str, Mapping[str, Any]] = {}
    for event in events:
        if event.get("cat") != "Node" or not event["name"].endswith(_SUFFIX) or event["ts"] < warm_until:
            continue
        name = event["name"].removesuffix(_SUFFIX)
        spent[name] += event["dur"]
        about[name] = event.get("args", {})
    found = [
        OperatorTime(
            name, about[name].get("op_name", ""), total / count, _executed(about[name]), _sources(name, outputs)
        )
        for name, total in spent.items()
    ]
    return sorted(found, key=lambda operator: -operator.microseconds)


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


def _node_outputs(path: Path) -> dict[str, tuple[str, ...]]:
    """Output tensors of each node of the optimised graph: fusion renames nodes, but keeps the last tensor's name."""
    try:
        import onnx
    except ImportError:
        return {}
    if not path.exists():
        return {}
    graph = onnx.load(str(path), load_external_data=False).graph
    return {node.name: tuple(name for name in node.output if name) for node in graph.node}
