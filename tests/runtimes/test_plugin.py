"""A third party's package, built and installed, is found like the runtimes and levers that come with hasten."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from small_models import linear

EXAMPLE = Path(__file__).parents[2] / "examples" / "plugin"

USE = """
import json, sys
import numpy as np
from pathlib import Path
from hasten.levers.base import all_levers
from hasten.model import Model
from hasten.recipe import Recipe
from hasten.runner import open_runner
from hasten.runtimes import all_runtimes, runtime
from hasten.variant import Variant

model = Model.from_json(json.loads(sys.argv[1]))
recipe = Recipe(runtime={"name": "onnx-reference"}, runner={"batch": 2})
with open_runner(Variant({"main": model}), recipe, model.signature, None) as runner:
    answers = runner.run([{"x": np.full(4, n, np.float32)} for n in range(3)])
print(json.dumps({
    "runtimes": {name: r.availability().usable for name, r in all_runtimes().items()},
    "levers": list(all_levers()),
    "answers": [answer["y"].tolist() for answer in answers],
}))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder that the example was installed into, with what this environment has: no network."""
    pytest.importorskip("hatchling", reason="building the example needs hatchling")
    folder = tmp_path_factory.mktemp("plugin")
    shutil.copytree(EXAMPLE, folder / "source")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--target", str(folder / "site"), str(folder / "source")], check=True)
    return folder / "site"


def test_an_installed_plugin_is_found_and_runs(installed, tmp_path):
    model, weight = linear(tmp_path)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", USE, json.dumps(model.to_json())],
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert found["runtimes"]["onnx-reference"] is True
    assert {"onnxruntime", "openvino"} <= set(found["runtimes"])
    assert "flush-denormals" in found["levers"]
    assert found["answers"][1] == pytest.approx([max(0.0, float(column.sum())) for column in weight.T], rel=1e-5)


def test_the_example_lever_edits_the_runtime_once(installed, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(installed))
    from hasten_example_plugin.lever import FlushDenormals

    from hasten.device import Device
    from hasten.goal import Goal
    from hasten.levers.base import Case
    from hasten.recipe import Recipe
    from hasten.workload import Samples, Split, Workload

    model, _ = linear(tmp_path)
    workload = Workload(model, Samples(tmp_path, "0", 4, (), "data", False), "cosine", "offline")
    case = Case(workload, Goal(), Device("any"), Recipe(), tmp_path, Split((), (), ()))
    (proposal,) = FlushDenormals().propose(case)
    assert proposal.recipe.runtime["session"] == {"session.set_denormal_as_zero": "1"}
    again = Case(workload, Goal(), Device("any"), proposal.recipe, tmp_path, Split((), (), ()))
    assert list(FlushDenormals().propose(again)) == []
