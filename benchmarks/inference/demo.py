"""The demo CNN: what `hasten optimize` makes of it, compared afresh with the model as brought."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from benchmarks.common import Group, Run, Taken, at_least, at_most
from benchmarks.inference.optimised import Optimised, optimised
from hasten import api
from hasten.demo import vision

MAX_DROP = "0.5pt"


def offline(run: Run) -> Mapping[str, Taken]:
    found = demo(run, "throughput")
    return {"demo.offline.speedup": fresh(run, found, "throughput")}


def single_stream(run: Run) -> Mapping[str, Taken]:
    found = demo(run, "latency")
    return {"demo.single_stream.speedup": fresh(run, found, "latency")}


def accuracy(run: Run) -> Mapping[str, Taken]:
    """The larger drop of the two winners, on samples that took no part in choosing them."""
    drops = []
    for goal in ("throughput", "latency"):
        best = demo(run, goal).study.best
        quality = None if best is None else best.measurement.quality
        if best is not None and best.origin == "brought":
            drops.append(Taken(0.0, f"the answer to {goal} is the model as brought", (0.0, 0.0)))
        elif quality is not None:
            how = f"winner for {goal}, {quality.samples} verification samples, accuracy {quality.value.value:.4f}"
            drops.append(Taken(quality.drop.value, how, quality.drop.ci95))
    worst = max(drops, key=lambda taken: taken.ci95[1] if taken.ci95 else float("inf"))
    return {"demo.accuracy_drop_points": worst}


def demo(run: Run, goal: str) -> Optimised:
    scenario = "offline" if goal == "throughput" else "single-stream"
    return optimised(
        run,
        f"demo {scenario}",
        vision.demo().model,
        "hasten.demo.vision:samples",
        goal=goal,
        metric="accuracy",
        max_drop=MAX_DROP,
        budget_s=run.pick(300.0 if goal == "throughput" else 120.0, 30.0),
    )


def fresh(run: Run, found: Optimised, goal: str) -> Taken:
    """The shipped bundle beside the model as brought, in new processes and new rounds."""
    with tempfile.TemporaryDirectory() as folder:
        bundle = api.save(found.study, Path(folder) / "winner")
        comparison = api.compare(
            found.model,
            bundle,
            found.data,
            goal=goal,
            metric=found.metric,
            max_drop=found.max_drop,
            budget=run.pick(40.0, 8.0),
        )
    noisy = ", too noisy to tell 5%" if comparison.noisy else ""
    how = (
        f"{found.recipe.describe()} against ONNX Runtime with default settings"
        f"{' in batches of 32' if goal == 'throughput' else ''}, {len(comparison.rounds)} alternating rounds{noisy}"
    )
    return Taken.of(comparison.ratio, how)


GROUPS = [
    Group({"demo.offline.speedup": "x"}, offline, {"demo.offline.speedup": at_least(5)}),
    Group({"demo.single_stream.speedup": "x"}, single_stream, {"demo.single_stream.speedup": at_least(3)}),
    Group({"demo.accuracy_drop_points": "pt"}, accuracy, {"demo.accuracy_drop_points": at_most(0.5, "interval")}),
]
