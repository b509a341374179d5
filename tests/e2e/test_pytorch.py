"""PyTorch models and Hugging Face folders, from the command line to a bundle that runs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from e2e_case import Said

torch = pytest.importorskip("torch")

Hasten = Callable[..., Said]

CODE = """
import numpy as np
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(16, 64), torch.nn.Linear(64, 4)

    def forward(self, x):
        return {"scores": self.second(torch.relu(self.first(x)))}


class Branches(Net):
    def forward(self, x):
        return {"scores": self.second(torch.relu(self.first(x)))} if x.sum() > -1e9 else {"scores": x}


def net():
    return Net()


def branches():
    return Branches()


def samples():
    draw = np.random.default_rng(0)
    for number in range(120):
        yield {"x": draw.normal(size=16).astype(np.float32)}, number % 4
"""


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of the user's own, in the folder where hasten is called; each test has one of its own name."""
    name = f"user_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(CODE)
    return name


@pytest.mark.slow
def test_a_module_is_optimised_and_its_bundle_needs_no_torch(hasten: Hasten, code: str, tmp_path: Path) -> None:
    said = hasten(
        "optimize", f"{code}:net", "--data", f"{code}:samples", "--metric", "top1-agreement", "--budget", "40s",
        "--out", "net.bundle", "--json", "study.json", "--only", "export", "--only", "execution",
        "--runtime", "openvino",
    )  # fmt: skip
    assert said.code == 0, said.err
    study = json.loads((tmp_path / "study.json").read_text())
    assert study["baseline"]["recipe"]["runtime"] == {"name": "torch"}
    ways = {
        (trial["recipe"]["step"][0]["to"], trial["recipe"]["runtime"]["name"])
        for trial in study["trials"]
        if trial["recipe"].get("step") and trial["speedup"]
    }
    assert ("openvino", "openvino") in ways
    rows = np.random.default_rng(1).normal(size=(5, 16)).astype(np.float32)
    np.savez(tmp_path / "in.npz", x=rows)
    blocked = "import sys; sys.modules['torch'] = None; sys.argv = ['run.py', 'in.npz', 'out.npz']; "
    done = subprocess.run(
        [sys.executable, "-c", blocked + "import runpy; runpy.run_path('net.bundle/run.py', run_name='__main__')"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    torch.manual_seed(0)
    first, second = torch.nn.Linear(16, 64), torch.nn.Linear(64, 4)
    wanted = second(torch.relu(first(torch.from_numpy(rows)))).detach().numpy()
    found = np.load(tmp_path / "out.npz")["scores"]
    assert np.abs(found - wanted).max() < 0.1 * np.abs(wanted).max()


@pytest.mark.slow
def test_a_module_that_cannot_be_exported_is_still_measured(hasten: Hasten, code: str) -> None:
    said = hasten("bench", f"{code}:branches", "--data", f"{code}:samples", "--scenario", "offline", "--seconds", "0.5")
    assert said.code == 0, said.err


@pytest.mark.slow
def test_pytorch_itself_ships_in_a_bundle_that_asks_for_trust(hasten: Hasten, code: str, tmp_path: Path) -> None:
    (tmp_path / "eager.toml").write_text('[runtime]\nname = "torch"\nthreads = 1\n\n[runner]\nbatch = 16\n')
    said = hasten(
        "build", f"{code}:net", "--recipe", "eager.toml", "--data", f"{code}:samples", "--budget", "6s", "--out", "b"
    )
    if said.code == 3:
        pytest.skip("this recipe is not faster here, and nothing was shipped")
    assert said.code == 0, said.err
    refused = hasten("bench", "b", "--data", f"{code}:samples", "--seconds", "0.5")
    assert refused.code == 2
    assert "can run code" in refused.err
    assert hasten("bench", "b", "--data", f"{code}:samples", "--seconds", "0.5", "--trust").code == 0


@pytest.mark.slow
def test_a_hugging_face_folder_goes_from_text_to_a_bundle(hasten: Hasten, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    sys.path.insert(0, str(Path(__file__).parent.parent / "intake"))
    try:
        from test_huggingface import bert
    finally:
        sys.path.pop(0)
    bert(tmp_path / "encoder", pooling="mean_tokens")
    draw = np.random.default_rng(0)
    words = ["the", "cat", "sat", "on", "mat", "a", "dog", "ran"]
    texts = [" ".join(draw.choice(words, draw.integers(2, 30))) for _ in range(80)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    said = hasten(
        "optimize", "encoder", "--data", "texts.jsonl", "--budget", "40s", "--out", "encoder.bundle", "--json",
        "study.json", "--skip", "compile",
    )  # fmt: skip
    assert said.code == 0, said.err
    study = json.loads((tmp_path / "study.json").read_text())
    assert study["workload"]["tokenizer"] is not None
    assert any("turn it into token numbers" in note for note in study["notes"])
    assert "- input `text`: string, [batch]" in (tmp_path / "encoder.bundle" / "README.md").read_text()
    best = next(trial for trial in study["trials"] if trial["id"] == study["best"])
    if best["origin"] == "brought":
        return  # a tiny model on a busy machine: nothing was shown to be faster
    np.savez(tmp_path / "in.npz", text=np.array(texts[:3]))
    done = subprocess.run(
        [sys.executable, "encoder.bundle/run.py", "in.npz", "out.npz"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert np.load(tmp_path / "out.npz")["sentence_embedding"].shape == (3, 16)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("bench", "nowhere_at_all:make"), "nowhere_at_all"),
        (("bench", "json:dumps"), "raised TypeError"),
        (("optimize", "platform:python_version"), "not an nn.Module"),
    ],
)
def test_code_that_makes_no_model_is_refused(hasten: Hasten, arguments: tuple[str, ...], told: str) -> None:
    said = hasten(*arguments)
    assert said.code == 2
    assert told in said.err
    assert "Traceback" not in said.err
