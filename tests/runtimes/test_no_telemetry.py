"""Rule 7, no telemetry: what runs a model leaves no device id, no session and no statistics of a runtime behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from small_models import linear

CODE = """
import json, sys
import numpy as np
from hasten.isolate import run
from hasten.model import Model
from hasten.runtimes import Settings, runtime

name, where, told = sys.argv[1:4]
if where == "here":
    model = Model.from_json(json.loads(told))
    session = runtime(name).load(model, Settings())
    session.run({"x": np.zeros((2, 4), np.float32)})
    session.close()
else:
    try:
        run({"onnxruntime": "onnxruntime:InferenceSession", "openvino": "openvino:Core"}[name], {})
    except Exception as error:
        assert "No module" not in str(error), error
"""


@pytest.mark.parametrize("where", ["here", "in a worker"])
@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_a_runtime_leaves_no_trace(tmp_path: Path, name: str, where: str) -> None:
    model, _ = linear(tmp_path)
    folders = {variable: tmp_path / variable for variable in ("HOME", "TMPDIR", "XDG_CACHE_HOME")}
    for folder in folders.values():
        folder.mkdir()
    environment = {k: v for k, v in os.environ.items() if k != "ORT_DISABLE_TELEMETRY"}
    environment |= {variable: str(folder) for variable, folder in folders.items()}
    ended = subprocess.run(
        [sys.executable, "-c", CODE, name, where, json.dumps(model.to_json())],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    assert [str(path) for folder in folders.values() for path in folder.rglob("*") if path.is_file()] == []
