"""Benchmark results: what is written, merged and turned into tables."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from benchmarks import tables
from benchmarks.common import Goal, Group, Run, Taken, arguments, at_least, at_most, main, row, take
from benchmarks.inference.coverage import wilson
from benchmarks.inference.ocr import decode, lines
from benchmarks.inference.space import SPACES, Space
from hasten.errors import Failed

DOCUMENT = {
    "benchmark": "toy",
    "date": "2026-01-02T03:04:05Z",
    "commit": "abc",
    "machine": {"processor": "Acme", "cpus": 2, "instructions": ["avx2"]},
    "versions": {"python": "3.11"},
    "figures": {
        "a.speedup": {"value": 5.123, "ci95": [4.9, 5.3], "unit": "x", "goal": ">= 5", "met": True, "how": "raced"},
        "b.speedup": {"value": None, "ci95": None, "unit": "x", "goal": ">= 2", "met": None, "how": "not taken: x"},
    },
}


def taking(value: float) -> Group:
    return Group({"a.speedup": "x"}, lambda run: {"a.speedup": Taken(value, "made up")}, {"a.speedup": at_least(5)})


def failing(run: Run) -> dict[str, Taken]:
    raise Failed("no network", "check it")


def test_a_figure_says_whether_its_goal_is_met() -> None:
    assert row(Taken(5.0, "", (4.0, 6.0)), "x", at_least(5))["met"] is True
    assert row(Taken(4.9, "", (4.0, 6.0)), "x", at_least(5))["met"] is False
    assert row(Taken(0.1, "", (-0.2, 0.6)), "pt", at_most(0.5, "interval"))["met"] is False
    assert row(Taken(None, "not taken"), "x", at_least(5))["met"] is None
    assert str(Goal("<=", 0.5, "interval")) == "<= 0.5 (whole interval)"


def test_an_interval_without_bounds_is_left_out_as_json_has_no_infinity() -> None:
    assert row(Taken(1.0, "", (-math.inf, math.inf)), "x", None)["ci95"] is None


def test_what_fails_is_there_with_its_reason() -> None:
    broken = Group({"a.speedup": "x", "b.speedup": "x"}, failing)
    found = take(broken, Run(True))
    assert {name: figure["value"] for name, figure in found.items()} == {"a.speedup": None, "b.speedup": None}
    assert found["b.speedup"]["how"] == "not taken: no network (check it)"


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_the_exit_status_is_0_even_when_no_goal_is_met(tmp_path: Path) -> None:
    target = tmp_path / "toy.json"
    assert main("toy", [taking(1.0), Group({"b": "x"}, failing)], arguments("toy", ["--json", str(target)])) == 0
    written = json.loads(target.read_text())
    assert written["figures"]["a.speedup"]["met"] is False
    assert set(written) == {"benchmark", "date", "commit", "machine", "versions", "figures"}


def test_taking_only_some_figures_keeps_the_others_of_the_file(tmp_path: Path) -> None:
    target = tmp_path / "toy.json"
    other = Group({"b": "x"}, lambda run: {"b": Taken(7.0, "")})
    main("toy", [taking(1.0), other], arguments("toy", ["--json", str(target)]))
    main("toy", [taking(6.0), other], arguments("toy", ["--json", str(target), "--only", "a."]))
    figures = json.loads(target.read_text())["figures"]
    assert (figures["a.speedup"]["value"], figures["b"]["value"]) == (6.0, 7.0)


def test_a_quick_run_writes_only_where_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.common.RESULTS", tmp_path / "results")
    main("toy", [taking(1.0)], arguments("toy", ["--quick"]))
    assert not (tmp_path / "results").exists()


def test_a_table_is_rewritten_between_its_markers_and_twice_is_once(tmp_path: Path) -> None:
    (tmp_path / "toy.json").write_text(json.dumps(DOCUMENT))
    page = "before\n<!-- figures:toy -->\nold\n<!-- /figures -->\nafter\n"
    once = tables.rewritten(page, tmp_path)
    assert "| `a.speedup` | 5.12× | 4.9 to 5.3 | ≥ 5 | met |" in once
    assert "| `b.speedup` | not taken |" in once
    assert once.startswith("before\n")
    assert once.endswith("\nafter\n")
    assert "old" not in once
    assert tables.rewritten(once, tmp_path) == once


def test_a_brief_table_leaves_out_how_each_figure_was_taken(tmp_path: Path) -> None:
    (tmp_path / "toy.json").write_text(json.dumps(DOCUMENT))
    brief = tables.rewritten("<!-- figures:toy brief -->\n<!-- /figures -->", tmp_path)
    assert "| `a.speedup` | 5.12× | 4.9 to 5.3 | ≥ 5 | met |" in brief
    assert "Taken on" in brief
    assert "How each was taken" not in brief
    assert tables.rewritten(brief, tmp_path) == brief


def test_a_table_without_results_says_so(tmp_path: Path) -> None:
    assert "No full run" in tables.rewritten("<!-- figures:toy -->\n<!-- /figures -->", tmp_path)


@pytest.mark.parametrize("name", sorted(path.stem for path in SPACES.glob("*.json")))
def test_every_recipe_of_a_committed_space_can_be_run(name: str) -> None:
    from hasten.levers import all_levers
    from hasten.runner.plan import RunnerSettings

    recipes = Space.read(name).recipes(2, [5, 9, 40, 120, 200])
    assert len({recipe.id for recipe in recipes}) == len(recipes) > 50
    for recipe in recipes:
        RunnerSettings.from_recipe(recipe.runner)
        assert {step.lever for step in recipe.steps} <= set(all_levers())


def test_the_recogniser_reads_lines_that_are_the_same_every_time() -> None:
    import numpy as np

    once, again = list(lines(3)), list(lines(3))
    assert [text for text, _ in once] == [text for text, _ in again]
    assert all(np.array_equal(a, b) for (_, a), (_, b) in zip(once, again, strict=True))
    assert all(image.shape[:2] == (3, 48) and image.shape[2] % 32 == 0 for _, image in once)
    assert decode([0, 1, 1, 0, 1, 2, 3], ["a", "b"]) == "aab "


def test_a_share_has_an_interval_even_when_all_hit() -> None:
    low, high = wilson(20, 20)
    assert 0.8 < low < high == 1.0
