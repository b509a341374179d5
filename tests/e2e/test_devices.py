"""A device that turns out not to work is a row of the table with its reason, and never the end of a study."""

from __future__ import annotations

from pathlib import Path

import onnxruntime as ort
import pytest
from e2e_case import Home

import hasten
from hasten.errors import HastenError
from hasten.levers import runtime as runtime_lever
from hasten.recipe import Recipe
from hasten.runtimes import Availability

if "CUDAExecutionProvider" in ort.get_available_providers():
    pytest.skip("the package of ONNX Runtime here has the GPU's providers", allow_module_level=True)


@pytest.fixture(autouse=True)
def folders(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, folder in home.environment.items():
        monkeypatch.setenv(name, folder)
    monkeypatch.delenv("HASTEN_STORE", raising=False)


def test_a_gpu_that_does_not_start_is_a_row_with_its_reason(
    model: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = {"onnxruntime": {"cuda": Availability(True)}}
    monkeypatch.setattr(runtime_lever, "_devices_of", lambda name: devices.get(name, {}))
    study = hasten.optimize(str(model), str(data), budget="60s", only=("runtime",), runtime=("onnxruntime",))
    tried = [trial for trial in study.trials if trial.recipe.runtime.get("device") == "cuda" and trial.seconds_spent]
    assert tried
    assert {(trial.status, trial.reason) for trial in tried} == {
        ("failed", "this onnxruntime has no CUDAExecutionProvider")
    }
    assert study.best is not None
    assert "device" not in study.best.recipe.runtime


def test_a_recipe_for_a_gpu_is_refused_with_what_would_add_it(model: Path, data: Path, tmp_path: Path) -> None:
    recipe = Recipe(runtime={"name": "onnxruntime", "device": "tensorrt", "precision": "fp16"})
    with pytest.raises(HastenError, match="TensorrtExecutionProvider"):
        hasten.build(str(model), recipe, tmp_path / "bundle", str(data), budget="60s")
    assert not (tmp_path / "bundle").exists()
