"""Whisper tiny.en on recorded prompts: clips one at a time and 32 together, beside transformers and CTranslate2."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from benchmarks.common import Group, Run, Taken, at_least, at_most
from benchmarks.inference import whisper_data, whisper_model, whisper_peers
from benchmarks.inference.optimised import Optimised, optimised
from benchmarks.racing import Subject, first_over_others, opened, ratio, subject, told
from hasten import api
from hasten.device import Device

MAX_DROP = "2pt"
CLIPS = {1: 8, 32: 32}
"""How many clips a round has, by how many are given together."""
GOALS = {1: "latency", 32: "throughput"}
KINDS = ("int8", "float32")


def whisper(run: Run, batch: int) -> Optimised:
    return optimised(
        run,
        f"whisper, {batch} at a time",
        str(whisper_model.folder()),
        str(whisper_data.folder()),
        goal=GOALS[batch],
        metric="wer",
        max_drop=MAX_DROP,
        budget_s=run.pick(240.0, 90.0),
    )


def raced(run: Run, batch: int) -> Mapping[str, Taken]:
    """The study's answer over eager transformers, and over the quickest of the other tools' settings."""
    found = whisper(run, batch)
    workload, device = found.study.workload, device_of()
    indices = list(workload.split(found.study.seed).verification[: run.pick(CLIPS[batch], 4)])
    eager, *others = peers(str(workload.samples.path), indices, batch, max(1, len(device.cpus)))
    ours = subject("hasten", found.build(found.recipe), found.recipe, workload, indices)
    with opened([ours, eager, *others], device) as contestants:
        race = first_over_others(contestants, run.pick(120.0, 30.0), min_rounds=run.pick(4, 2))
    speeds = {name: sorted(rounds)[len(rounds) // 2] for name, rounds in race.rounds.items() if rounds}
    best = min(
        (each.name for each in others if each.name in race.ratios and each.name not in race.errors),
        key=lambda name: race.ratios[name].value,
    )
    rates = ", ".join(f"{name} {speed:.2f}" for name, speed in speeds.items())
    how = f"{found.recipe.describe()}; clips/s: {rates}; {len(indices)} clips; {told(race)}"
    return {
        f"whisper.b{batch}.speedup_vs_eager": Taken.of(ratio(race, eager.name), f"over {eager.name}; {how}"),
        f"whisper.b{batch}.speedup_vs_best_peer": Taken.of(ratio(race, best), f"over {best}, the quickest; {how}"),
    }


def peers(samples: str, indices: list[int], batch: int, cores: int) -> list[Subject]:
    """Eager transformers first, then CTranslate2 in both precisions, with one thread and with all."""
    shared: dict[str, Any] = {
        "folder": str(whisper_model.folder()),
        "samples": samples,
        "indices": indices,
        "batch": batch,
    }
    module = "benchmarks.inference.whisper_peers"
    found = [Subject("transformers eager fp32", {**shared, "engine": "eager", "threads": cores}, module)]
    site, model = str(whisper_peers.installed()), str(whisper_peers.model())
    for kind in KINDS:
        for threads in sorted({1, cores}):
            own = {"engine": "ctranslate2", "threads": threads, "site": site, "model": model, "kind": kind}
            label = f"CTranslate2 {kind}, {threads} {'thread' if threads == 1 else 'threads'}"
            found.append(Subject(label, {**shared, **own}, module))
    return found


def one(run: Run) -> Mapping[str, Taken]:
    return raced(run, 1)


def many(run: Run) -> Mapping[str, Taken]:
    return raced(run, 32)


def drop(run: Run) -> Mapping[str, Taken]:
    """What the answer for 32 clips lost, on clips that took no part in choosing it."""
    best = whisper(run, 32).study.best
    quality = None if best is None else best.measurement.quality
    if best is None or quality is None:
        raise RuntimeError("the study has no answer other than the model as brought")
    how = f"{best.recipe.describe()}: WER {quality.value.value:.2%} on {quality.samples} clips; positive is worse"
    return {"whisper.quality_drop": Taken.of(quality.drop, how)}


@cache
def device_of() -> Device:
    return api.doctor().device


GROUPS = [
    Group(
        {f"whisper.b{batch}.speedup_vs_eager": "x", f"whisper.b{batch}.speedup_vs_best_peer": "x"},
        take,
        {f"whisper.b{batch}.speedup_vs_best_peer": at_least(1.0)},
    )
    for batch, take in ((1, one), (32, many))
] + [Group({"whisper.quality_drop": "pt"}, drop, {"whisper.quality_drop": at_most(2.0)})]
