"""A model with one fragile layer: full INT8 breaks it, the solver's choice does not, and keeps the speed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lever_models import case_of, mlp, outputs

from hasten.isolate import Scope
from hasten.levers import assignment as choose
from hasten.levers.base import Case
from hasten.levers.calibration import with_batch_axis
from hasten.levers.grouping import Node, block_names, groups_of
from hasten.levers.int8 import Int8
from hasten.levers.sensitivity import Sensitivity, _assignment_in, allowed_by, attributed, measure, recipe_of
from hasten.measurement import Figure, Measurement, Quality, Trial
from hasten.recipe import Recipe, Step
from hasten.runtimes import OperatorTime
from hasten.variant import Variant

FRAGILE = 4
RUNTIMES = ("openvino", "onnxruntime")


def table_of(case: Case, options: dict[str, Any]) -> tuple[dict[str, Any], Variant, Variant]:
    before, step = Variant({"main": case.workload.model}), Step("int8", options)
    quantised = Int8().apply(before, step, case)
    payload = {
        "case": case.to_json(),
        "before": before.to_json(),
        "quantised": quantised.to_json(),
        "step": step.to_json(),
        "left_s": 60.0,
    }
    return measure(payload, Scope()), before, quantised


def agreement(case: Case, runtime: str, before: Variant, after: Variant) -> float:
    from hasten.data import SampleSet

    samples = SampleSet.open(case.workload.samples.path)
    signature = case.workload.model.signature
    rows = [with_batch_axis(samples[i], signature)["x"] for i in case.split.verification]
    batch = {"x": np.concatenate(rows)}
    truth = outputs(before.main, runtime, batch).argmax(-1)
    return float((outputs(after.main, runtime, batch).argmax(-1) == truth).mean())


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_the_fragile_layer_is_kept_and_four_fifths_of_the_speed_with_it(tmp_path: Path, runtime: str) -> None:
    plain = Recipe(runtime={"name": runtime, "precision": "fp32"})
    case = case_of(mlp(tmp_path / "m.onnx", 16, fragile=FRAGILE), tmp_path, plain, count=300)
    table, before, quantised = table_of(case, {"scheme": "mixed"})
    assert agreement(case, runtime, before, quantised) < 0.8

    for group in table["groups"]:  # costs as an INT8 unit of 2.5 times the rate would have them
        group["time_us"] = {table["levels"][0]: 10.0, "int8": 4.0}
    table["other_us"] = dict.fromkeys(table["other_us"], 0.0)
    chosen = choose.solve(table, allowed_by(case, table))
    proposals = list(Sensitivity().propose(replace(case, sensitivity=table)))
    full = len(table["groups"]) * 10.0 / choose.time_of(table, dict.fromkeys(chosen, "int8"))
    found = len(table["groups"]) * 10.0 / choose.time_of(table, chosen)
    assert found > 0.8 * full
    assert f"layer{FRAGILE}" in [name for g in choose.kept(chosen) for name in _nodes(table, g)]

    recipe = recipe_of(plain, table, chosen)
    assert recipe in [proposal.recipe for proposal in proposals]
    built = Int8().apply(before, recipe.steps[-1], replace(case, recipe=recipe))
    assert agreement(case, runtime, before, built) > 0.97


def _nodes(table: dict[str, Any], name: str) -> list[str]:
    return next(group["nodes"] for group in table["groups"] if group["name"] == name)


def paper_table() -> dict[str, Any]:
    groups = [
        {
            "name": f"layer{i}",
            "nodes": [f"layer{i}"],
            "loss": {"bf16": 0.0, "int8": loss},
            "seen": loss,
            "time_us": {"bf16": 10.0, "int8": 4.0},
        }
        for i, loss in enumerate((0.001, 0.002, 0.3, 0.004, 0.006))
    ]
    return {
        "runtime": "openvino",
        "levels": ["bf16", "int8"],
        "kind": "cosine",
        "samples": 100,
        "options": {"scheme": "mixed"},
        "full": {"loss": 0.313, "seen": 0.313},
        "other_us": {"bf16": 5.0, "int8": 5.0},
        "groups": groups,
    }


def paper(tmp_path: Path, **more: Any) -> Case:
    recipe = Recipe(runtime={"name": "openvino", "precision": "bf16"})
    return replace(case_of(mlp(tmp_path / "m.onnx", 2), tmp_path, recipe, 12, "cosine"), **more)


def test_nothing_is_proposed_before_the_table_or_for_another_runtime(tmp_path: Path) -> None:
    case = paper(tmp_path)
    lever = Sensitivity()
    assert not list(lever.propose(case))
    other = replace(case, sensitivity=paper_table(), recipe=Recipe(runtime={"name": "onnxruntime"}))
    assert not list(lever.propose(other))
    assert "openvino" in (lever.refuse(other) or "")


def test_recipes_name_the_kept_operators_and_come_quickest_first(tmp_path: Path) -> None:
    proposals = list(Sensitivity().propose(paper(tmp_path, sensitivity=paper_table())))
    assert [p.gain.factor for p in proposals] == sorted((p.gain.factor for p in proposals), reverse=True)
    keeps = [p.recipe.steps[-1].options["keep"] for p in proposals]
    assert ["layer2"] in keeps
    assert all("layer2" in keep for keep in keeps)
    assert all(p.recipe.steps[-1].lever == "int8" for p in proposals)


def test_a_choice_that_lost_too_much_is_followed_by_a_tighter_one(tmp_path: Path) -> None:
    case = paper(tmp_path, sensitivity=paper_table())
    first = next(p.recipe for p in Sensitivity().propose(case) if p.recipe.steps[-1].options["keep"] == ["layer2"])
    drop = Figure(2.6, "%", "measured")
    quality = Quality("cosine", Figure(0.974, "", "measured"), drop, "fidelity", 100)
    failed = Trial("t", first, "rejected", "quality drops 2.6%", Measurement({}, quality))
    repaired = [p for p in Sensitivity().propose(replace(case, trials=(failed,))) if "predicted" in p.why]
    assert repaired
    assert all(len(p.recipe.steps[-1].options["keep"]) > 1 for p in repaired)


def test_time_is_given_to_the_groups_whose_operators_were_fused_into_a_kernel() -> None:
    nodes = [
        Node("a", (), True, True),
        Node("a.relu", ("a",), False, False),
        Node("b", ("a.relu",), True, True),
    ]
    groups, owner = groups_of(nodes)
    times = [
        OperatorTime("a", "Conv", 8.0, "", ("a", "a.relu")),
        OperatorTime("k", "Fused", 4.0, "", ("a", "b")),
        OperatorTime("reorder", "Reorder", 1.0),
        OperatorTime("x", "Relu", 2.0, "", ("a.relu",)),
    ]
    spent, other = attributed(times, groups, owner)
    assert spent == {"a": 12.0, "b": 2.0}
    assert other == 1.0


def test_light_operators_stay_with_the_heavy_one_before_them_and_movers_are_not_kept() -> None:
    nodes = [
        Node("conv", (), True, True),
        Node("add", ("conv",), False, True),
        Node("reshape", ("add",), False, True, moving=True),
        Node("matmul", ("reshape",), True, True),
    ]
    groups, _ = groups_of(nodes)
    assert [group.nodes for group in groups] == [("conv", "add"), ("matmul",)]


def test_many_operators_become_blocks_by_path_or_runs_of_neighbours() -> None:
    paths = [f"/layer.{i}/{part}" for i in range(20) for part in ("q", "k", "v")]
    assert len(set(block_names(paths, 40).values())) == 20
    flat = [f"node_{i}" for i in range(100)]
    assert len(set(block_names(flat, 40).values())) == 34


def weights_table() -> dict[str, Any]:
    groups = [
        {
            "name": f"p{i}",
            "nodes": [f"p{i}"],
            "loss": {"bf16": 0.0, "weights8": 0.0001, "weights4": loss},
            "seen": loss,
            "time_us": {"bf16": 10.0, "weights8": 8.0, "weights4": 4.0},
        }
        for i, loss in enumerate((0.001, 0.002, 0.3, 0.004))
    ]
    return {
        "runtime": "openvino",
        "levels": ["bf16", "weights8", "weights4"],
        "kind": "divergence",
        "samples": 192,
        "options": {"group": 32},
        "full": {"loss": 0.307, "seen": 0.3},
        "other_us": dict.fromkeys(("bf16", "weights8", "weights4"), 5.0),
        "groups": groups,
    }


def test_the_mix_of_4_and_8_bits_is_written_into_the_recipe_and_read_from_it(tmp_path: Path) -> None:
    table = weights_table()
    proposals = list(Sensitivity().propose(paper(tmp_path, sensitivity=table)))
    assert {"bits": 4, "group": 32, "eight": ["p2"]} in [p.recipe.steps[-1].options for p in proposals]
    for levels in (("weights4", "weights8", "bf16", "bf16"), ("weights8", "bf16", "weights8", "bf16")):
        chosen = {f"p{i}": level for i, level in enumerate(levels)}
        recipe = recipe_of(Recipe(runtime={"name": "openvino"}), table, chosen)
        assert _assignment_in(Recipe.from_toml(recipe.to_toml()), table) == chosen
