"""A tiny Whisper and made-up clips, from the command line to a bundle that transcribes without hasten."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import wave
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from e2e_case import Said

import hasten as api

pytest.importorskip("torch")
pytest.importorskip("transformers")
import speech_models

Hasten = Callable[..., Said]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return speech_models.write(tmp_path_factory.mktemp("whisper") / "tiny")


@pytest.fixture
def clips(tmp_path: Path) -> Path:
    folder, draw = tmp_path / "clips", np.random.default_rng(0)
    folder.mkdir()
    lines = []
    for number in range(16):
        sound = (3000 * draw.normal(size=4000 + 500 * number)).astype("<i2")
        with wave.open(str(folder / f"{number}.wav"), "wb") as file:
            file.setparams((1, 2, 16000, 0, "NONE", ""))
            file.writeframes(sound.tobytes())
        lines.append(json.dumps({"file": f"{number}.wav", "text": f"ab cb {chr(97 + number)}b"}) + "\n")
    (folder / "metadata.jsonl").write_text("".join(lines))
    return folder


@pytest.mark.slow
def test_whatever_is_chosen_ships_and_its_bundle_writes_what_the_model_did(
    hasten: Hasten, model: Path, clips: Path, tmp_path: Path
) -> None:
    said = hasten(
        "optimize", str(model), "--data", str(clips), "--metric", "wer", "--only", "audio_context",
        "--max-drop", "100pt", "--budget", "6s", "--out", "speech.bundle", "--json", "study.json",
    )  # fmt: skip
    assert said.code == 0, said.err
    study = json.loads((tmp_path / "study.json").read_text())
    assert study["workload"]["metric"] == "wer"
    with api.load(tmp_path / "speech.bundle") as loaded:
        text = loaded.transcribe(clips / "3.wav")
        both = loaded([{"audio": np.ones(3000)}, {"audio": np.ones(9000, np.float32)}])
    assert len(both["text"]) == 2
    blocked = "import sys; sys.modules['hasten'] = None; sys.argv = ['run.py', 'clips/3.wav']; "
    done = subprocess.run(
        [sys.executable, "-c", blocked + "import runpy; runpy.run_path('speech.bundle/run.py', run_name='__main__')"],
        cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == text


@pytest.mark.slow
def test_a_speech_model_says_what_it_needs(hasten: Hasten, model: Path, clips: Path, tmp_path: Path) -> None:
    said = hasten("optimize", str(model), "--budget", "5s")
    assert said.code == 2
    assert "--data" in said.err
    said = hasten("optimize", str(model), "--data", str(clips), "--metric", "accuracy", "--budget", "5s")
    assert said.code == 2
    assert "wer" in said.err
    (clips / "3.wav").write_bytes(b"no sound at all")
    said = hasten("optimize", str(model), "--data", str(clips), "--budget", "5s")
    assert said.code == 2
    assert "3.wav is not a .wav file" in said.err
    assert said.plain
