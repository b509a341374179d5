"""What bucketing and token packing bring MiniLM on texts of mixed length, each beside sorted batches at their best."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.common import Group, Run, Taken
from benchmarks.inference.minilm import LEAST_COSINE, minilm, raced, reference
from benchmarks.racing import first_over_others, opened, ratio, subject, told
from hasten.isolate import run as in_worker
from hasten.levers.bucket import edges
from hasten.levers.pack import SEGMENTS, row_tokens
from hasten.recipe import Recipe, Step

INT8 = Step("int8", {"scheme": "mixed", "transformer": True})
BF16 = {"name": "openvino", "precision": "bf16"}


def contestants(lengths: list[int], cores: int) -> dict[str, Recipe]:
    """The same INT8 and bf16 arithmetic in every runner: one-thread streams on all cores."""
    runtime: dict[str, Any] = {**BF16, "streams": cores, "threads": 1}
    row = row_tokens(lengths)
    found = {f"sorted {batch}": Recipe((INT8,), runtime, {"batch": batch, "sort": True}) for batch in (8, 32)}
    for tokens in (512, 2048):
        runner = {"form": "bucket", "buckets": list(edges(lengths, 16)), "batch_tokens": tokens, "static": True}
        found[f"bucketed {tokens}"] = Recipe((INT8,), runtime, runner)
    for tokens in (512, 3072):
        runner = {
            "form": "pack",
            "row_tokens": row,
            "rows": max(1, tokens // row),
            "segments": SEGMENTS,
            "static": True,
        }
        found[f"packed {tokens}"] = Recipe((Step("pack"), INT8), runtime, runner)
    return found


def gains(run: Run) -> Mapping[str, Taken]:
    study, workload = minilm(run).study, raced(run).workload
    recipes = contestants(list(raced(run).lengths), max(1, len(study.device.cpus)))
    subjects = [subject(name, minilm(run).build(recipe), recipe, workload) for name, recipe in recipes.items()]
    with opened(subjects, study.device) as open_ones:
        rates: dict[str, float] = {}
        for each in open_ones:  # a look at each decides which two sides race
            rates[each.name] = max(each.round() for _ in range(run.pick(5, 2)))
        best = {
            kind: max((name for name in rates if name.startswith(kind)), key=lambda name: rates[name])
            for kind in ("sorted", "bucketed", "packed")
        }
        found: dict[str, Taken] = {}
        for figure, kind in (("bucketing.minilm.gain", "bucketed"), ("packing.minilm.gain", "packed")):
            pair = [next(c for c in open_ones if c.name == best[k]) for k in (kind, "sorted")]
            race = first_over_others(pair, run.pick(40.0, 8.0))
            with tempfile.TemporaryDirectory() as folder:
                path = pair[0].outputs(range(workload.samples.count), Path(folder) / "ours.npz")
                mean, _ = in_worker(
                    "benchmarks.inference.minilm:cosines_of", {"paths": [str(path), str(reference(run))]}
                )
            if mean < LEAST_COSINE:
                raise RuntimeError(f"{pair[0].name}: mean cosine to fp32 is {mean:.4f}, under {LEAST_COSINE}")
            looked = ", ".join(f"{name} {rate:.0f}/s" for name, rate in rates.items())
            ours, theirs = (recipes[each.name].describe() for each in pair)
            how = f"{ours} over {theirs}, each the best of its kind ({looked}); cosine to fp32 {mean:.4f}; {told(race)}"
            found[figure] = Taken.of(ratio(race, pair[1].name), how)
    return found


GROUPS = [Group({"bucketing.minilm.gain": "x", "packing.minilm.gain": "x"}, gains)]
