"""Rule 7, no telemetry: what runs a model with ONNX Runtime leaves no device id and no session behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from small_models import linear

CODE = """
import json, sys
import numpy as np
from pathlib import Path
from hasten.isolate import run
from hasten.model import Model
from hasten.runtimes import Settings, runtime

if __name__ == "__main__":
    model = Model.from_json(json.loads(sys.argv[1]))
    if sys.argv[2] == "here":
        session = runtime("onnxruntime").load(model, Settings())
        session.run({"x": np.zeros((2, 4), np.float32)})
        session.close()
    else:
        run("onnxruntime:get_available_providers", {})
"""


def test_neither_this_process_nor_a_worker_leaves_a_trace(tmp_path: Path) -> None:
    import json

    model, _ = linear(tmp_path)
    for where in ("here", "worker"):
        home = tmp_path / where
        folders = {name: home / name for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME")}
        for folder in folders.values():
            folder.mkdir(parents=True)
        environment = {k: v for k, v in os.environ.items() if k != "ORT_DISABLE_TELEMETRY"}
        environment |= {name: str(folder) for name, folder in folders.items()}
        ended = subprocess.run(
            [sys.executable, "-c", CODE, json.dumps(model.to_json()), where],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        if where == "here":
            assert ended.returncode == 0, ended.stderr
        assert [str(path) for path in home.rglob("*") if path.is_file()] == []
