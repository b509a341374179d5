"""Today's tools as peers: each is given the best of a grid of batches, sorting, streams and threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any

from benchmarks.common import Run
from benchmarks.racing import CALL_S, Subject, subject
from hasten.device import Device
from hasten.errors import HastenError
from hasten.isolate import Limits, Worker
from hasten.recipe import Recipe, Step
from hasten.variant import Variant
from hasten.workload import Workload

BATCHES = (8, 16, 32, 64)
INT8 = {"scheme": "mixed", "transformer": True}

PEERS: dict[str, Recipe] = {
    "ONNX Runtime fp32": Recipe((), {"name": "onnxruntime"}),
    "ONNX Runtime fp32, transformer fusions": Recipe((Step("fuse", {"transformer": True}),), {"name": "onnxruntime"}),
    "ONNX Runtime dynamic INT8": Recipe((Step("dynamic_int8"),), {"name": "onnxruntime"}),
    "ONNX Runtime dynamic INT8, transformer fusions": Recipe(
        (Step("fuse", {"transformer": True}), Step("dynamic_int8")), {"name": "onnxruntime"}
    ),
    "OpenVINO fp32": Recipe((), {"name": "openvino", "precision": "fp32"}),
    "OpenVINO bf16": Recipe((), {"name": "openvino", "precision": "bf16"}),
    "OpenVINO NNCF INT8": Recipe((Step("int8", INT8),), {"name": "openvino", "precision": "fp32"}),
    "OpenVINO NNCF INT8 + bf16": Recipe((Step("int8", INT8),), {"name": "openvino", "precision": "bf16"}),
}
"""Each tool's own artefact, made with its own defaults, run by hasten's runner."""

QUICK_PEERS = ("ONNX Runtime fp32", "OpenVINO bf16", "OpenVINO NNCF INT8")


@dataclass(frozen=True)
class Peer:
    """A peer at its best setting, how fast that was when it was tuned, and its mean cosine to fp32."""

    name: str
    recipe: Recipe
    variant: Variant
    per_second: float
    cosine: float

    def subject(self, workload: Workload, indices: Sequence[int]) -> Subject:
        return subject(self.name, self.variant, self.recipe, workload, indices)


def tuned(
    run: Run,
    build: Callable[[Recipe], Variant],
    workload: Workload,
    device: Device,
    reference: Path,
    others: Mapping[str, tuple[Recipe, Callable[[], Variant]]] = MappingProxyType({}),
) -> list[Peer]:
    """Every peer that works here at its best setting, quickest first. `reference` holds the outputs at fp32.

    `others` are peers that are made in another way than by `build`, which a quick run leaves out.
    """
    cores = max(1, len(device.cpus))
    executions = list(dict.fromkeys([(cores, 1), (1, cores)]))
    found = []
    made = {name: (recipe, partial(build, recipe)) for name, recipe in PEERS.items()}
    for name, (recipe, make) in {**made, **others}.items():
        if run.quick and name not in QUICK_PEERS:
            continue
        try:
            variant = make()
            tries = [
                (edited, answer)
                for edited in (
                    recipe.edit("runtime", streams=streams, threads=threads) for streams, threads in executions
                )
                for answer in [_grid(run, subject(name, variant, edited, workload), device, reference)]
            ]
        except HastenError as error:
            run.say(f"  {name}: {error.cause}")
            continue
        edited, setting, per_second = max(
            ((edited, *row) for edited, answer in tries for row in answer["rows"]), key=lambda each: each[-1]
        )
        peer = Peer(name, replace(edited, runner=setting), variant, per_second, tries[0][1]["cosine"])
        run.say(f"  {name}: {peer.recipe.describe()}: {per_second:.1f} texts/s, mean cosine {peer.cosine:.4f}")
        found.append(peer)
    return sorted(found, key=lambda peer: -peer.per_second)


def _grid(run: Run, whole: Subject, device: Device, reference: Path) -> dict[str, Any]:
    payload = {
        **whole.payload,
        "tuned_on": list(whole.payload["indices"])[:: run.pick(2, 8)],
        "batches": BATCHES[:: run.pick(1, 2)],
        "reference": str(reference),
    }
    with Worker(Limits(cpus=device.cpus or None)) as worker:
        answer: dict[str, Any] = worker.call("benchmarks.inference.peers:grid", payload, CALL_S)
        return answer


def grid(payload: dict[str, Any], scope: Any) -> dict[str, Any]:
    """Worker function: samples a second for each of `payload["batches"]` of sorted samples, and unsorted for the best.

    The session stays loaded, as batches and sorting do not change it. What took over a quarter longer than the best in
    the first round is not run again. Also the mean cosine of all outputs to those in the file `reference`.
    """
    from hasten.data import SampleSet
    from hasten.measure.outputs import load
    from hasten.model import Signature
    from hasten.runner import open_runner
    from hasten.runner.plan import RunnerSettings
    from hasten.workload import Padding

    samples = SampleSet.open(Path(payload["samples"]))
    scene = [samples[i] for i in payload["tuned_on"]]
    runner = open_runner(
        Variant.from_json(payload["variant"]),
        Recipe.from_json(payload["recipe"]),
        Signature.from_json(payload["signature"]),
        Padding.from_json(payload["padding"]),
    )

    def once(batch: int, sort: bool) -> float:
        runner.settings = RunnerSettings(batch, sort=sort)
        start = time.perf_counter()
        runner.run(scene)
        return time.perf_counter() - start

    batches = payload["batches"]
    once(batches[0], True)
    first = {batch: once(batch, True) for batch in batches}
    worth = [batch for batch in batches if first[batch] < 1.25 * min(first.values())]
    seconds = first | {batch: median([first[batch], once(batch, True)]) for batch in worth}
    best = min(seconds, key=lambda batch: seconds[batch])
    rows = [({"batch": batch, "sort": True}, len(scene) / seconds[batch]) for batch in batches]
    rows.append(({"batch": best, "sort": False}, len(scene) / once(best, False)))
    mean, least = cosines(runner.run([samples[i] for i in payload["indices"]]), load(Path(payload["reference"])))
    return {"rows": rows, "cosine": mean, "least": least}


def cosines(ours: Sequence[Mapping[str, Any]], theirs: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """The mean and the least cosine of each sample's one output with the other's."""
    import numpy as np

    a, b = (np.stack([next(iter(row.values())) for row in rows]).astype(np.float64) for rows in (ours, theirs))
    found = (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    return float(found.mean()), float(found.min())
