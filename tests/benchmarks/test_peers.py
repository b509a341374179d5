"""The table beside the peers: settings, environments, samples, and the page that is made of the rows."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import tables
from benchmarks.common import Run, Taken
from benchmarks.inference import contenders, environments, magika, silero, table
from benchmarks.inference.environments import Tool, last_line, within
from benchmarks.inference.hands import settings
from hasten.data import SampleSet
from hasten.errors import Failed
from hasten.recipe import Recipe, Step

OPENVINO = Recipe((Step("int8"),), {"name": "openvino", "precision": "bf16"}, {"batch": 128})
ROW = {
    "model": "toy",
    "shape": "b1",
    "peer": "Acme",
    "status": "left out",
    "settings": "int8 | acme",
    "speedup": 2.0,
    "raced": False,
    "quality": 0.5,
    "metric": "cosine",
    "drop": 50.0,
    "drop_unit": "pt",
    "seconds": 12.0,
    "commands": ["pip install acme"],
    "reason": "cosine falls by 50 pt",
}


def test_a_hand_is_divided_among_streams_and_is_never_exceeded() -> None:
    found = list(settings(OPENVINO, 32, 2))
    assert len({recipe.id for recipe in found}) == len(found) == 8
    assert {(r.runtime["streams"], r.runner["batch"]) for r in found} == {(1, 32), (1, 16), (2, 16), (2, 8)}
    assert all(recipe.steps == OPENVINO.steps and recipe.runtime["precision"] == "bf16" for recipe in found)


def test_one_sample_at_a_time_has_one_stream_and_fixed_shapes_for_openvino_alone() -> None:
    assert [(r.runtime["threads"], r.runner) for r in settings(OPENVINO, 1, 2)] == [
        (threads, runner) for threads in (2, 1) for runner in ({"batch": 1}, {"batch": 1, "static": True})
    ]
    onnx = Recipe((), {"name": "onnxruntime"})
    assert not any(recipe.runner.get("static") for recipe in settings(onnx, 32, 2))


def test_fusions_for_transformers_are_offered_to_transformers() -> None:
    assert any("fusions" in name for name in contenders.in_process(True))
    found = contenders.in_process(False)
    assert not any("fusions" in name for name in found)
    steps = [step for recipe in found.values() for step in recipe.steps if step.lever == "int8"]
    assert len(steps) == 3
    assert not any(step.options.get("transformer") for step in steps)


def test_a_command_has_its_time_and_says_why_it_failed() -> None:
    assert within([sys.executable, "-c", "print('made')"], 30, "converting").strip() == "made"
    with pytest.raises(Failed, match="converting failed: ModuleNotFoundError: No module named 'nowhere'"):
        within([sys.executable, "-c", "import nowhere"], 30, "converting")
    with pytest.raises(Failed, match="installing took over 1 s"):
        within([sys.executable, "-c", "import time; time.sleep(60)"], 1, "installing")
    assert last_line("\n") == "it said nothing"


def test_a_tool_that_makes_no_model_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "installed", lambda tool: 3.0)
    monkeypatch.setattr(environments, "_python", lambda tool: sys.executable)
    (tmp_path / "m.onnx").write_bytes(b"model")
    silent = Tool("Acme", ("acme==1",), ("{bin}/" + Path(sys.executable).name, "-c", "print('no luck')"))
    with pytest.raises(Failed, match="ended without a model: no luck"):
        environments.made(silent, tmp_path / "m.onnx", tmp_path / "s.npz", tmp_path / "into")
    writing = replace(silent, command=(*silent.command[:2], "import sys; open(sys.argv[1], 'w')", "{into}/model.onnx"))
    done = environments.made(writing, tmp_path / "m.onnx", tmp_path / "s.npz", tmp_path / "into")
    assert (done.path.name, done.setup_s) == ("model.onnx", 3.0)


def test_environments_differ_by_what_is_installed_and_say_how() -> None:
    tool = Tool("Acme", ("acme==1",), ("{bin}/acme",), ("forgotten",))
    assert tool.setup == ("python -m venv peer", "peer/bin/pip install acme==1 forgotten")
    assert Tool("Lib", ("lib==2",)).setup == ("pip install --no-deps lib==2",)
    assert tool.folder == replace(tool, name="other").folder != replace(tool, undeclared=()).folder


def test_rows_become_a_page_with_every_reason(tmp_path: Path) -> None:
    document = {
        "machine": {"processor": "Acme", "cpus": 2},
        "rows": [
            {**ROW, "date": "2026-01-02T00:00:00Z"},
            {**ROW, "peer": "Fast", "status": "ran", "reason": "", "speedup": 9.0, "raced": True, "date": "2026-01-02"},
            {**ROW, "peer": "Gone", "status": "failed", "speedup": None, "quality": None, "date": "2026-01-02"},
        ],
    }
    (tmp_path / "toy-peers.json").write_text(json.dumps(document))
    page = tables.rewritten("<!-- figures:toy-peers -->\n<!-- /figures -->\n", tmp_path)
    assert page.index("| Fast | 9×") < page.index("| Acme | 2×") < page.index("| Gone |  |  |")
    assert "| Acme | 2× | cosine 0.5000 | 12 s | int8 / acme; **left out**: cosine falls by 50 pt |" in page
    assert "- Acme: `pip install acme`" in page
    assert tables.rewritten(page, tmp_path) == page
    assert "No full run has been stored yet: `python -m benchmarks.toy` makes one" in tables.rewritten(
        page, tmp_path / "nowhere"
    )


def test_rows_of_a_model_replace_its_earlier_ones(tmp_path: Path) -> None:
    run = Run(False, target=tmp_path / "toy.json")
    table.keep(run, "toy", [ROW])
    table.keep(run, "other", [{**ROW, "model": "other"}])
    table.keep(run, "toy", [{**ROW, "peer": "Better"}])
    rows = json.loads((tmp_path / "toy-peers.json").read_text())["rows"]
    assert [(row["model"], row["peer"]) for row in rows] == [("other", "Acme"), ("toy", "Better")]
    table.keep(Run(True), "toy", [ROW])
    assert [path.name for path in tmp_path.iterdir()] == ["toy-peers.json"]


def test_a_shape_that_fails_leaves_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def answered(run: Run, case: table.Case, shape: str) -> object:
        if shape == "b1":
            raise Failed("no luck")
        return object()

    def taken(run: Run, case: table.Case, shape: str, answer: object, folder: Path) -> object:
        return {f"{case.name}.{shape}.{figure}": Taken(1.0, "") for figure in table.FIGURES}, []

    monkeypatch.setattr(table, "answered", answered)
    monkeypatch.setattr(table, "shape_figures", taken)
    monkeypatch.setattr(table, "worst", lambda answers: Taken(0.0, f"{len(answers)}"))
    found = table.figures(Run(True), table.CASES[0])
    assert set(found) == set(table.GROUPS[0].units)
    assert found["minilm.b1.fraction_of_limit"].how == "not taken: no luck"
    assert found["minilm.b32.speedup_vs_eager"].value == 1.0


def test_a_file_is_cut_as_its_model_wants_it() -> None:
    long = magika.features(b" " + bytes(range(48, 58)) * 1000 + b"\n")
    assert (len(long), long[0], long[-1], max(long)) == (2048, 48, 57, 57)
    short = magika.features(b"ab")
    assert (short[:3], short[-3:]) == ([97, 98, 256], [256, 97, 98])


def test_the_voice_is_the_same_every_time_and_within_range() -> None:
    once, again = silero.voice(1.0), silero.voice(1.0)
    assert (once == again).all()
    assert len(once) == silero.RATE
    assert 0.1 < abs(once).max() < 1.0


def test_optimum_intel_is_for_models_that_came_as_hugging_face_folders(tmp_path: Path) -> None:
    assert {case.name for case in table.CASES if case.source is not None} == {"minilm"}
    assert all("{source}" in tool.command for tool in environments.OPTIMUM_INTEL)
    assert not any("{source}" in tool.command for tool in environments.TOOLS)
    (first, second) = environments.OPTIMUM_INTEL
    assert first.folder == second.folder
    assert first.setup[-1] == "peer/bin/pip uninstall -y torchvision"


def test_samples_of_different_sizes_are_padded_for_the_tools(tmp_path: Path) -> None:
    data = SampleSet.write(tmp_path / "samples", [{"ids": np.ones(n, np.int64)} for n in (2, 3)])
    payload = {"samples": str(data.path), "indices": [0, 1], "names": ["ids"], "into": str(tmp_path / "s.npz")}
    contenders.stack(payload, None)
    with np.load(tmp_path / "s.npz") as found:
        assert found["ids"].tolist() == [[1, 1, 0], [1, 1, 1]]
