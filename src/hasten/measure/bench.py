"""Opens a variant in a worker and runs rounds of its scenario: the functions that the lab calls there."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.errors import Failed
from hasten.isolate import Scope
from hasten.measure.device_memory import grown, used_bytes
from hasten.measure.energy import Meter, kind_of
from hasten.model import Signature
from hasten.recipe import Recipe
from hasten.variant import Variant
from hasten.workload import Padding

if TYPE_CHECKING:
    import numpy as np

    from hasten.data import SampleSet
    from hasten.runner import Generator, Runner, Transcriber

STEADY_ROUNDS = 8
STEADY_GAIN = 0.97
STEADY_S = 2.0
"""Warming up ends when a round is hardly quicker than the best before it, after this many, or after this long."""
OPERATORS_S = 2.0
CHUNK, SLOW_CHUNK, SPOKEN_CHUNK = 256, 4, 64
"""Samples between two looks at the clock; those of language models are slow, and clips should fill batches."""


@dataclass
class Opened:
    """What a worker keeps between calls."""

    runner: Runner | Generator | Transcriber
    samples: SampleSet
    scenario: str
    scene: Sequence[Mapping[str, np.ndarray]]
    kind: str = "cpu"


def open(payload: dict[str, Any], scope: Scope) -> dict[str, Any]:
    """Load the variant, take the scene's samples, and warm up until rounds no longer get quicker.

    `payload`: variant, recipe, signature (of the source model), padding, samples (path), indices (the scene), scenario,
    limit (warm up on the first so many samples of it). Returns seconds to load and to warm up, and of one such round,
    and the bytes that it took on a GPU (None where there is none, or it took none).
    """
    from hasten.data import SampleSet
    from hasten.runner import Generator, open_runner

    samples = SampleSet.open(Path(payload["samples"]))
    scene = [samples[i] for i in payload["indices"]]
    if not scene:
        raise Failed("there is no sample to run")
    recipe = Recipe.from_json(payload["recipe"])
    before = used_bytes()
    start = time.perf_counter()
    runner = open_runner(
        Variant.from_json(payload["variant"]),
        recipe,
        Signature.from_json(payload["signature"]),
        Padding.from_json(payload["padding"]),
    )
    loaded = time.perf_counter()
    if isinstance(runner, Generator):
        runner.to_the_end = True  # the same work in every round, whatever a variant would say
    opened = Opened(runner, samples, payload["scenario"], scene, kind_of(recipe))
    runner.warm(scene)
    part = scene[: payload.get("limit")]
    best = math.inf
    for _ in range(STEADY_ROUNDS):
        seconds = _run(opened, opened.scenario, part)["seconds"]
        if seconds > best * STEADY_GAIN or time.perf_counter() - loaded > STEADY_S:
            break
        best = seconds
    scope.state["opened"] = opened
    return {
        "load_s": loaded - start,
        "warm_s": time.perf_counter() - loaded,
        "round_s": min(best, seconds),
        "device_memory_bytes": grown(before),
    }


def round(payload: dict[str, Any], scope: Scope) -> dict[str, Any]:
    """Run the scene `payload["repeat"]` times: seconds, CPU seconds, samples, latencies in single-stream, what was
    used again (pairs, by figure), the answers of a language model, and on a GPU the joules that the counters say (None
    elsewhere, or where there are none).

    `payload["scenario"]` overrides the scenario that the variant was opened for, and `payload["limit"]` takes only the
    first so many samples of the scene.
    """
    opened: Opened = scope.state["opened"]
    scenario = payload.get("scenario") or opened.scenario
    scene = opened.scene[: payload.get("limit")]
    meter = Meter(opened.kind) if opened.kind == "gpu" else None
    with meter or nullcontext():
        parts = [_run(opened, scenario, scene) for _ in range(int(payload.get("repeat", 1)))]
    return {
        "seconds": sum(part["seconds"] for part in parts),
        "cpu_seconds": sum(part["cpu_seconds"] for part in parts),
        "count": sum(part["count"] for part in parts),
        "latencies_ms": list(itertools.chain.from_iterable(part["latencies_ms"] for part in parts)),
        "reused": {
            name: [sum(pair) for pair in zip(*(part["reused"][name] for part in parts), strict=True)]
            for name in parts[0]["reused"]
        },
        "answers": list(itertools.chain.from_iterable(part["answers"] for part in parts)),
        "joules": None if meter is None or not meter.counts_the_gpu else meter.energy.value,
        "energy_source": None if meter is None else meter.energy.source,
    }


def outputs(payload: dict[str, Any], scope: Scope) -> dict[str, Any]:
    """Run the samples at `indices` and save their outputs, in that order, to `path`.

    With `seconds`, no further chunk of samples is begun after that time; `count` says how many were run.
    """
    from hasten.measure.outputs import save
    from hasten.runner import Generator, Transcriber

    opened: Opened = scope.state["opened"]
    indices, seconds = payload["indices"], payload.get("seconds") or math.inf
    results: list[Any] = []
    opened.runner.forget()  # quality is that of one pass, too
    size = SLOW_CHUNK if isinstance(opened.runner, Generator) else CHUNK
    if isinstance(opened.runner, Transcriber):
        size = SPOKEN_CHUNK
    start = time.perf_counter()
    while len(results) < len(indices) and (not results or time.perf_counter() - start < seconds):
        chunk = indices[len(results) : len(results) + size]
        results += opened.runner.judge([opened.samples[i] for i in chunk])
        scope.progress(len(results) / len(indices), f"outputs of {len(results)} samples")
    save(Path(payload["path"]), results)
    return {"count": len(results)}


def operators(payload: dict[str, Any], scope: Scope) -> list[dict[str, Any]]:
    """Per-operator times of the scene's typical batch, from as many runs as take about `OPERATORS_S`."""
    from dataclasses import asdict

    opened: Opened = scope.state["opened"]
    seconds = _run(opened, opened.scenario, opened.scene)["seconds"]
    repeats = max(2, min(10, int(OPERATORS_S / seconds)))
    return [asdict(time) for time in opened.runner.operators(opened.scene, repeats)]


def _run(opened: Opened, scenario: str, scene: Sequence[Mapping[str, np.ndarray]]) -> dict[str, Any]:
    """One pass. What earlier ones left behind is forgotten: rounds must not turn every sample into a hit."""
    runner = opened.runner
    runner.forget()
    latencies: list[float] = []
    answers: list[tuple[float, float, int]] = []
    clock = time.perf_counter
    cpu = time.process_time()
    start = clock()
    if scenario == "single-stream":
        before = start
        for sample in scene:
            runner.run_one(sample)
            now = clock()
            latencies.append((now - before) * 1e3)
            before = now
            answers += _answers(runner)
    else:
        runner.run(scene)
        answers += _answers(runner)
    return {
        "seconds": clock() - start,
        "cpu_seconds": time.process_time() - cpu,
        "count": len(scene),
        "latencies_ms": latencies,
        "reused": runner.reused(),
        "answers": answers,
    }


def _answers(runner: Runner | Generator | Transcriber) -> list[tuple[float, float, int]]:
    """Of each answer of a language model: seconds to its first token, seconds in all, tokens."""
    return [astuple(each) for each in getattr(runner, "timings", ())]
