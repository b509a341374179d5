"""The whole loop on the demo's CNN with a small budget: what is written, not how fast it got."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from e2e_case import Home, Said, fill

import hasten
from hasten.demo.vision import FOLDER

Start = Callable[..., "subprocess.Popen[str]"]
MODEL = str(FOLDER / "fashion_cnn.onnx")
COMMAND = ("optimize", MODEL, "--data", "hasten.demo.vision:samples", "--metric", "accuracy", "--max-drop", "0.5pt")
FIGURE = {"value", "ci95", "unit", "source"}


@dataclass(frozen=True)
class Optimised:
    """What one run of `hasten optimize` left."""

    said: str
    study: dict[str, Any]
    bundle: Path

    @property
    def best(self) -> dict[str, Any]:
        found: dict[str, Any] = next(t for t in self.study["trials"] if t["id"] == self.study["best"])
        return found


@pytest.fixture(scope="module")
def optimised(home: Home, tmp_path_factory: pytest.TempPathFactory) -> Optimised:
    folder = tmp_path_factory.mktemp("whole")
    command = [*COMMAND, "--budget", "30s", "--out", str(folder / "bundle"), "--json", str(folder / "study.json")]
    ended = subprocess.run(
        [sys.executable, "-c", "import sys; from hasten.cli import main; sys.exit(main())", *command],
        cwd=folder,
        env={**os.environ, **home.environment, "HASTEN_TESTS": str(os.getpid())},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "Traceback" not in ended.stdout + ended.stderr
    return Optimised(ended.stdout, json.loads((folder / "study.json").read_text()), folder / "bundle")


@pytest.mark.slow
def test_the_json_is_as_the_design_says(optimised: Optimised) -> None:
    study = optimised.study
    assert study["schema"] == "hasten.study/1"
    assert {"workload", "device", "goal", "baseline", "trials", "pareto", "best", "why"} <= study.keys()
    assert {"model", "data", "metric", "scenario"} <= study["workload"].keys()
    assert study["workload"]["metric"] == "accuracy"
    assert study["workload"]["data"]["count"] == 2000
    assert study["goal"] == {"optimise": "throughput", "max_drop": "0.5pt", "where": [], "budget_s": 30.0}
    assert study["best"] in {trial["id"] for trial in study["trials"]}
    assert set(study["pareto"]) <= {trial["id"] for trial in study["trials"]}
    assert study["why"]
    for trial in study["trials"]:
        assert {"id", "recipe", "status", "reason", "quality", "speedup", "seconds_spent"} <= trial.keys()
        assert trial["status"] in ("ok", "rejected", "undecided", "failed")
        assert trial["reason"] or trial["id"] == study["best"]
        for name in ("throughput_per_s", "peak_memory_mb", "size_mb", "energy_j_per_inference", "cost_per_million"):
            assert name not in trial or trial[name].keys() == FIGURE
    measured = [trial for trial in study["trials"] if trial["speedup"] is not None]
    assert len(measured) >= 2
    for trial in measured:
        assert {"throughput_per_s", "peak_memory_mb", "size_mb", "energy_j_per_inference"} <= trial.keys()
        assert trial["speedup"].keys() == FIGURE


@pytest.mark.slow
def test_the_model_as_brought_is_in_it_and_the_winner_has_proved_itself(optimised: Optimised) -> None:
    baseline, best = optimised.study["baseline"], optimised.best
    assert baseline["recipe"]["runtime"] == {"name": "onnxruntime"}
    assert baseline["speedup"]["value"] == 1.0
    if best["id"] == baseline["id"]:
        return
    assert best["final"]
    assert best["status"] == "ok"
    assert best["speedup"]["ci95"][0] > 1.0
    assert best["quality"]["kind"] == "labels"
    assert best["quality"]["drop"]["unit"] == "pt"


@pytest.mark.slow
def test_the_table_names_every_trial_and_the_choice(optimised: Optimised) -> None:
    for words in ("Recipe", "Speed-up", "Quality", "Chosen", "as brought", str(optimised.bundle)):
        assert words in optimised.said


@pytest.mark.slow
def test_the_bundle_loads_and_answers_as_its_run_py_does(optimised: Optimised, tmp_path: Path) -> None:
    from hasten.demo.vision import samples

    few = [inputs for _, (inputs, _) in zip(range(40), samples(), strict=False)]
    labels = np.array([label for _, (_, label) in zip(range(40), samples(), strict=False)])
    images = np.stack([sample["image"] for sample in few])
    with hasten.load(optimised.bundle) as bundle:
        here = bundle({"image": images})
    np.savez(tmp_path / "in.npz", image=images)
    subprocess.run(
        [sys.executable, str(optimised.bundle / "run.py"), str(tmp_path / "in.npz"), str(tmp_path / "out.npz")],
        check=True,
    )
    with np.load(tmp_path / "out.npz") as there:
        assert set(there.files) == set(here)
        for name, values in here.items():
            np.testing.assert_allclose(np.asarray(values), there[name], rtol=1e-3, atol=1e-3)
    (logits,) = (np.asarray(values) for values in here.values())
    assert (logits.argmax(axis=-1) == labels).mean() > 0.8


@pytest.mark.slow
def test_report_study_and_compare_know_of_it(optimised: Optimised, hasten: Callable[..., Said], tmp_path: Path) -> None:
    key = optimised.study["key"]
    page = hasten("report", optimised.bundle, "--out", tmp_path / "bundle.html")
    assert page.code == 0, page
    assert "<html" in (tmp_path / "bundle.html").read_text()[:200].lower()
    assert hasten("report", key[:12], "--out", tmp_path / "study.html").code == 0
    listed = hasten("study", "list", "--json", "-")
    assert listed.code == 0
    assert key in listed.out
    shown = hasten("study", "show", key[:12], "--json", "-")
    assert json.loads(shown.out)["best"] == optimised.study["best"]


@pytest.mark.slow
def test_a_full_disk_under_the_bundle_leaves_nothing_there(
    optimised: Optimised, home: Home, hasten: Callable[..., Said], disk: Callable[..., Path]
) -> None:
    folder = disk("size=1m")
    fill(folder)
    said = hasten(*COMMAND, "--budget", "1s", "--out", folder / "bundle")
    assert said.code == 1, said
    assert said.plain, said
    assert "No space left on device" in said.err
    assert "\n  Fix: " in said.err
    assert [path.name for path in folder.iterdir()] == ["full"]
    assert optimised.study["key"] in home.studies()
    assert home.settled() == []


@pytest.mark.slow
def test_the_same_command_again_measures_nothing_that_it_knows(
    optimised: Optimised, home: Home, hasten: Callable[..., Said], tmp_path: Path
) -> None:
    from hasten.lab.store import Store

    key = optimised.study["key"]
    before = {t.id for t in Store(home.store).trials(key)}
    again = hasten(*COMMAND, "--budget", "1s", "--json", tmp_path / "again.json")
    assert again.code == 0, again
    assert f"resumed with {len(before)} finished trials" in again.out
    assert {t.id for t in Store(home.store).trials(key)} == before
    found = json.loads((tmp_path / "again.json").read_text())
    best = optimised.study["best"]
    if best != optimised.study["baseline"]["id"]:
        assert found["best"] == best
        assert found["why"] == optimised.study["why"]
    assert hasten("study", "rm", key[:12]).code == 0
    assert key not in hasten("study", "list", "--json", "-").out


@pytest.mark.slow
def test_nothing_is_left_in_the_users_folders_but_hastens_own(optimised: Optimised, home: Home) -> None:
    assert home.settled() == []
    assert {path.name for path in (home.root / "cache").iterdir()} == {"hasten"}
    assert {path.name for path in (home.root / "data").iterdir()} == {"hasten"}
    assert list((home.root / "home").iterdir()) == []
    assert optimised.bundle.is_dir()
