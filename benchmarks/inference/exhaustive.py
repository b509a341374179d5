"""The exhaustive search: every recipe of a committed space measured by the same lab, the best confirmed, all stored."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, Run, describe, write
from benchmarks.inference.optimised import Optimised
from benchmarks.inference.space import SPACES, Space
from hasten.costs.tariff import Tariff
from hasten.errors import Failed
from hasten.lab.trial import LocalLab, quality_key
from hasten.measurement import Trial
from hasten.paths import cache_dir
from hasten.recipe import Recipe
from hasten.search.optimize import builder_of

FINALISTS = 6
FEW = 6
"""A quick run measures about this many recipes, and stores nothing that lasts."""


def stored(run: Run, name: str) -> Path:
    return cache_dir() / f"exhaustive-{name}.json" if run.quick else RESULTS / f"exhaustive-{name}.json"


def best_known(run: Run, name: str, found: Optimised) -> Mapping[str, Any]:
    """The stored search, done first where it was asked for. Raises `Failed` where there is none of this model."""
    path = stored(run, name)
    if run.exhaustive:
        search(run, name, found)
    if not path.is_file():
        raise Failed("no exhaustive search of this space is stored", "run with --exhaustive, which takes an hour")
    document: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if document["model"] != found.study.workload.model.sha256:
        raise Failed("the stored exhaustive search is about another model file", "run with --exhaustive")
    if "best" not in document:
        raise Failed("the stored exhaustive search is not finished", "run with --exhaustive to go on with it")
    return document


def search(run: Run, name: str, found: Optimised) -> None:
    """Screen every recipe of the space, race the quickest, confirm the winner. Goes on where it was interrupted."""
    study, path = found.study, stored(run, name)
    baseline = study.baseline
    assert baseline is not None
    lengths = _lengths(study.workload) if study.workload.padding and study.workload.padding.verified else ()
    recipes = Space.read(name).recipes(max(1, len(study.device.cpus)), lengths)
    if run.quick:
        recipes = recipes[:: max(1, len(recipes) // FEW)]
    document = describe(f"exhaustive-{name}", run.quick)
    del document["figures"]
    document |= {
        "space": hashlib.sha256((SPACES / f"{name}.json").read_bytes()).hexdigest(),
        "model": study.workload.model.sha256,
        "goal": study.goal.to_json() | {"metric": study.workload.metric, "scenario": study.workload.scenario},
        "recipes": len(recipes),
        "trials": [],
    }
    done = _resumed(path, document)
    lab = LocalLab(
        study.workload,
        study.goal,
        study.device,
        study.workload.split(study.seed),
        cache_dir() / "exhaustive" / name,
        builder_of(study),
        Tariff.here(study.device.name, max(1, len(study.device.cpus))),
        seed=study.seed,
    )
    try:
        lab.start(baseline.recipe)
        trials = []
        for number, recipe in enumerate(recipes):
            trial = done.get(recipe.id) or lab.screen(recipe)
            trials.append(trial)
            found_here = trial.reason or (f"{trial.speedup.value:.2f}x" if trial.speedup else "")
            run.say(f"  {number + 1} of {len(recipes)}: {recipe.describe()}: {found_here}")
            document["trials"].append(_kept(trial))
            write(path, document)
        document["best"] = _best(run, lab, lab.baseline(), trials)
        write(path, document)
    finally:
        lab.close()


def _best(run: Run, lab: LocalLab, baseline: Trial, trials: list[Trial]) -> dict[str, Any]:
    """The quickest recipe that holds when it is confirmed: what shares its outputs with one that does not is out."""
    held = [t for t in trials if t.status in ("ok", "undecided")]
    ranked = sorted(held, key=lambda t: -t.speedup.value if t.speedup else 0.0)
    while ranked:
        run.say("racing the finalists")
        finalists = ranked[:FINALISTS]
        ratios = lab.race([t.recipe for t in finalists], run.pick(90.0, 10.0))
        winner = max(finalists, key=lambda t: ratios[t.id].value if t.id in ratios else 0.0)
        confirmed = lab.confirm(winner, [baseline], run.pick(60.0, 8.0))[-1]
        if confirmed.status == "ok":
            return _kept(confirmed)
        run.say(f"  {winner.recipe.describe()}: {confirmed.reason}")
        lost = quality_key(winner.recipe)
        quality = confirmed.reason.startswith("quality")
        ranked = [t for t in ranked if t.id != winner.id and not (quality and quality_key(t.recipe) == lost)]
    return _kept(baseline)


def _kept(trial: Trial) -> dict[str, Any]:
    """What of a trial is stored: the recipe, the ratio and why it was refused, if it was."""
    data = trial.to_json()
    return {key: data[key] for key in ("id", "recipe", "status", "reason", "speedup")}


def _resumed(path: Path, document: Mapping[str, Any]) -> dict[str, Trial]:
    """Trials of an unfinished search of the same space and model in the same environment."""
    if not path.is_file():
        return {}
    earlier = json.loads(path.read_text(encoding="utf-8"))
    same = all(earlier.get(key) == document[key] for key in ("space", "model", "machine", "versions", "recipes"))
    if not same or "best" in earlier:
        return {}
    return {
        each["id"]: Trial.from_json({**each, "recipe": Recipe.from_json(each["recipe"]).to_json()})
        for each in earlier["trials"]
    }


def _lengths(workload: Any) -> tuple[int, ...]:
    from hasten.isolate import run as in_worker

    payload = {"samples": str(workload.samples.path), "axis": workload.padding.axis}
    return tuple(in_worker("benchmarks.inference.exhaustive:lengths", payload) or ())


def lengths(payload: dict[str, Any], scope: Any) -> list[int]:
    """Worker function: every sample's size along the variable axis."""
    from hasten.data import SampleSet

    return SampleSet.open(Path(payload["samples"])).lengths(payload["axis"]) or []
