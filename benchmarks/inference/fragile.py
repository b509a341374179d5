"""The demo CNN with one layer that INT8 breaks: how much of full INT8's speed is kept without losing accuracy."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.common import Group, Run, Taken, at_least
from benchmarks.inference.optimised import optimised
from benchmarks.racing import first_over_others, opened, ratio, subject, told
from hasten import api
from hasten.demo import vision
from hasten.isolate import run as in_worker
from hasten.paths import cache_dir
from hasten.recipe import Recipe, Step

LAYER = "body.2.conv1"
SPREAD = 3.0
"""Channels of the layer's output are scaled by 10 to the power of -SPREAD..SPREAD."""


def kept_speedup(run: Run) -> Mapping[str, Taken]:
    path = cache_dir() / "fragile.onnx"
    in_worker("benchmarks.inference.fragile:make", {"model": vision.demo().model, "layer": LAYER, "into": str(path)})
    found = optimised(
        run,
        "fragile offline",
        str(path),
        "hasten.demo.vision:samples",
        metric="accuracy",
        max_drop="0.5pt",
        budget_s=run.pick(150.0, 40.0),
    )
    answer, study = found.recipe, found.study
    full, exact = without_exceptions(answer), at_full_precision(answer)
    scene = study.workload.split(study.seed).verification[:512]
    names = {"answer": answer, "full INT8": full, "fp32": exact}
    subjects = [subject(name, found.build(recipe), recipe, study.workload, scene) for name, recipe in names.items()]
    with opened(subjects, study.device) as contestants:
        race = first_over_others(contestants, run.pick(40.0, 10.0))
    kept, over = ratio(race, "full INT8"), ratio(race, "fp32").value
    budget = run.pick(15.0, 5.0)
    broken = api.compare(path, path, found.data, metric="accuracy", max_drop="0.5pt", recipe_b=full, budget=budget)
    ours = None if study.best is None else study.best.measurement.quality
    how = (
        f"{answer.describe()} is {over:.2f}x fp32 with the same settings, full INT8 {over / kept.value:.2f}x; "
        f"accuracy drop {_drop(ours)}, of full INT8 {_drop(broken.quality)}; {told(race)}"
    )
    return {"sensitivity.fragile.kept_speedup": Taken.of(kept, how)}


def without_exceptions(recipe: Recipe) -> Recipe:
    """The recipe with every operator quantised: the INT8 step without what it keeps, or a plain one added."""
    if not recipe.has("int8"):
        runtime = {**recipe.runtime, "name": "openvino"}
        return Recipe((*recipe.steps, Step("int8", {"scheme": "mixed"})), runtime, recipe.runner)
    steps = [
        Step(step.lever, {k: v for k, v in step.options.items() if k != "keep"}, step.part)
        if step.lever == "int8"
        else step
        for step in recipe.steps
    ]
    return dataclasses.replace(recipe, steps=tuple(steps))


def at_full_precision(recipe: Recipe) -> Recipe:
    """The recipe without INT8, in fp32, under the same settings."""
    steps = tuple(step for step in recipe.steps if step.lever != "int8")
    return dataclasses.replace(recipe, steps=steps).edit("runtime", precision="fp32")


def make(payload: dict[str, Any], scope: Any) -> None:
    """Worker function: scale each output channel of a convolution by its own factor, and undo it in the next one.

    In exact arithmetic nothing changes, as ReLU lets positive factors through. In INT8 the activation between the two
    has one scale for all channels, and so do the next layer's weights over their inputs: most channels vanish.
    """
    import numpy as np
    import onnx
    from onnx import numpy_helper

    proto = onnx.load(payload["model"])
    weights = {tensor.name: tensor for tensor in proto.graph.initializer}
    first = next(n for n in proto.graph.node if n.op_type == "Conv" and n.input[1].startswith(payload["layer"]))
    relu = next(n for n in proto.graph.node if first.output[0] in n.input)
    second = next(n for n in proto.graph.node if relu.output[0] in n.input)
    assert (relu.op_type, second.op_type) == ("Relu", "Conv")
    kernel = numpy_helper.to_array(weights[first.input[1]])
    factors = 10 ** np.random.default_rng(0).uniform(-SPREAD, SPREAD, len(kernel)).astype(np.float32)
    for name, shape in ((first.input[1], (-1, 1, 1, 1)), (first.input[2], (-1,)), (second.input[1], (1, -1, 1, 1))):
        scale = factors.reshape(shape)
        array = numpy_helper.to_array(weights[name])
        scaled = array / scale if name == second.input[1] else array * scale
        weights[name].CopyFrom(numpy_helper.from_array(scaled.astype(np.float32), name))
    onnx.save(proto, str(Path(payload["into"])))


def _drop(quality: Any) -> str:
    if quality is None:
        return "unknown"
    interval = "" if quality.drop.ci95 is None else f" (at most {quality.drop.ci95[1]:.2f})"
    return f"{quality.drop.value:.2f} {quality.drop.unit}{interval}"


GROUPS = [
    Group(
        {"sensitivity.fragile.kept_speedup": "share"},
        kept_speedup,
        {"sensitivity.fragile.kept_speedup": at_least(0.8)},
    )
]
