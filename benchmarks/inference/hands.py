"""Runs a variant on one sample or one hand of samples at a time, under each setting of a small grid."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hasten.errors import HastenError
from hasten.recipe import Recipe
from hasten.variant import Variant

LOOK_S = 0.25
WORSE = 1.5
"""A setting whose first round takes this many times the best one's is not looked at again."""


def settings(recipe: Recipe, hand: int, cores: int) -> Iterator[Recipe]:
    """The recipe with every division of the cores, batches that make up a hand, and shapes fixed or not.

    Fixed shapes are offered to OpenVINO alone: ONNX Runtime gains nothing by them.
    """
    fixed = (False, True) if recipe.runtime.get("name") == "openvino" else (False,)
    for streams, threads in dict.fromkeys([(1, cores), (1, 1)] if hand == 1 else [(1, cores), (cores, 1)]):
        for static in fixed:
            for batch in dict.fromkeys([max(1, hand // streams), max(1, hand // streams // 2)]):
                runner = {"batch": batch} | ({"static": True} if static else {})
                yield Recipe(recipe.steps, recipe.runtime, runner).edit("runtime", streams=streams, threads=threads)


def tune(payload: dict[str, Any], scope: Any) -> dict[str, Any]:
    """Worker function: samples a second under each of `payload["recipes"]`, and the outputs under the best.

    `payload`: variant, recipes, signature, padding, samples, scene, scenario, judged (indices), into (file of outputs).
    """
    from hasten.data import SampleSet
    from hasten.measure.bench import Opened, _run
    from hasten.measure.outputs import save
    from hasten.model import Signature
    from hasten.runner import open_runner
    from hasten.workload import Padding

    samples = SampleSet.open(Path(payload["samples"]))
    scene = [samples[i] for i in payload["scene"]]
    rates: list[float] = []
    failure: HastenError | None = None

    def opened(recipe: dict[str, Any]) -> Opened:
        runner = open_runner(
            Variant.from_json(payload["variant"]),
            Recipe.from_json(recipe),
            Signature.from_json(payload["signature"]),
            Padding.from_json(payload["padding"]),
        )
        return Opened(runner, samples, payload["scenario"], scene)

    for recipe in payload["recipes"]:
        try:
            each = opened(recipe)
        except HastenError as error:
            failure = error
            rates.append(0.0)
            continue
        each.runner.warm(scene)
        best = math.inf
        start = time.perf_counter()
        while best == math.inf or time.perf_counter() - start < LOOK_S:
            best = min(best, _run(each, payload["scenario"], scene)["seconds"])
            if rates and len(scene) / best * WORSE < max(rates):
                break
        rates.append(len(scene) / best)
        each.runner.close()
    if not any(rates) and failure is not None:
        raise failure
    chosen = max(range(len(rates)), key=lambda i: rates[i])
    each = opened(payload["recipes"][chosen])
    save(Path(payload["into"]), each.runner.run([samples[i] for i in payload["judged"]]))
    return {"chosen": chosen, "per_second": rates[chosen]}
