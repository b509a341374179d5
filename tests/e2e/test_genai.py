"""A tiny Hugging Face decoder on OpenVINO GenAI and on ONNX Runtime GenAI: searched, and bundles without hasten."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("openvino_genai")
pytest.importorskip("onnxruntime_genai")

import hasten
from causal_models import folder
from hasten.bundle import write
from hasten.search.optimize import builder_of

TEXTS = ["the train to the north", "people", "leaves at seven, and people are on it once more"]
LEVERS = ["continuous_batching", "onnx_decoder"]


@pytest.mark.slow
def test_the_search_tries_both_and_their_bundles_answer_without_hasten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CACHE", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    path = folder(tmp_path / "small", hidden_size=64)
    (tmp_path / "texts.jsonl").write_text("\n".join(json.dumps({"text": f"{n} {t}"}) for n in range(8) for t in TEXTS))
    study = hasten.optimize(path, tmp_path / "texts.jsonl", only=LEVERS, budget="3s", new_tokens=4)
    np.savez(tmp_path / "in.npz", text=np.array(TEXTS))
    for runtime, package in (("openvino_genai", "openvino-genai"), ("onnxruntime_genai", "onnxruntime-genai")):
        trial = next(trial for trial in study.trials if trial.recipe.runtime["name"] == runtime)
        assert trial.status != "failed", trial.reason
        bundle = tmp_path / f"{runtime}.bundle"
        write(study, trial, builder_of(study)(trial.recipe), bundle)
        assert f"{package}==" in (bundle / "requirements.txt").read_text()
        program = "import runpy, sys; sys.modules['hasten'] = sys.modules['torch'] = None; "
        program += f"sys.argv = ['', 'in.npz', 'out.npz']; runpy.run_path('{bundle}/run.py', run_name='__main__')"
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": ""},
        )
        assert done.returncode == 0, done.stderr
        assert len(np.load(tmp_path / "out.npz")["text"]) == len(TEXTS)
