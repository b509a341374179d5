"""A tiny Whisper converted to CTranslate2: the same texts, the same rules, and a bundle that needs nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import wave
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import hasten
from hasten import intake
from hasten.bundle import write
from hasten.device import Device
from hasten.errors import Failed, InvalidInput
from hasten.goal import Goal
from hasten.intake import huggingface
from hasten.levers.base import Case
from hasten.levers.ctranslate2 import CTranslate2
from hasten.model import Model
from hasten.recipe import Recipe, Step
from hasten.runner import open_runner
from hasten.runner.transcribe import Rules, written
from hasten.runtimes.base import Settings
from hasten.runtimes.ctranslate2 import CTranslate2Speech, log_mel
from hasten.search.optimize import builder_of
from hasten.variant import Variant
from hasten.workload import Samples, Workload

pytest.importorskip("ctranslate2")
pytest.importorskip("torch")
pytest.importorskip("transformers")
import speech_models

PLAIN = {"name": "ctranslate2", "precision": "fp32"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return speech_models.write(tmp_path_factory.mktemp("whisper") / "tiny")


@pytest.fixture(scope="module")
def cached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        path = tmp_path_factory.mktemp("cache")
        patch.setenv("XDG_CACHE_HOME", str(path))
        yield path


@pytest.fixture(scope="module")
def original(folder: Path, cached: Path) -> Variant:
    model = intake.load(folder)
    words = intake.tokenizer(folder, model)
    assert words is not None
    return Variant({"main": model, **intake.parts(folder, model), "tokenizer": words}, "encoder_decoder")


@pytest.fixture(scope="module")
def converted(original: Variant, cached: Path) -> Variant:
    return CTranslate2().apply(original, Step("ctranslate2"), case(original, cached / "work"))


def case(variant: Variant, workdir: Path, recipe: Recipe | None = None) -> Case:
    samples = Samples(Path("samples"), "1" * 64, 64, (), "data", True)
    workload = Workload(variant.main, samples, "wer", "offline", program="encoder_decoder")
    runtimes = ("openvino", "ctranslate2")
    return Case(workload, Goal(), Device("paper"), recipe or Recipe(), workdir, workload.split(), runtimes=runtimes)


def clips(count: int = 5) -> list[dict[str, np.ndarray]]:
    draw = np.random.default_rng(1)
    return [{"audio": draw.normal(0, 0.1, 4000 + 3000 * n).astype(np.float32)} for n in range(count)]


def said(variant: Variant, runtime: dict[str, object], runner: dict[str, object]) -> list[str]:
    with open_runner(variant, Recipe(runtime=runtime, runner=runner), variant.main.signature, None) as opened:
        found = [str(each["text"]) for each in opened.run(clips())]
        assert str(opened.run_one(clips()[0])["text"]) == found[0]
    return found


@pytest.mark.parametrize(
    "runner", [{}, {"batch": 3, "sort": True}, {"batch": 2, "sort": True, "margin_s": 0.5, "step_s": 0.1}]
)
def test_the_converted_model_writes_what_the_other_writes(
    original: Variant, converted: Variant, runner: dict[str, object]
) -> None:
    found = said(converted, {**PLAIN, "streams": 2, "threads": 1}, runner)
    assert found == said(original, {"precision": "fp32"}, runner)
    assert len(set(found)) > 1


def test_what_may_not_be_written_is_not_and_an_answer_has_its_most_tokens(
    original: Variant, converted: Variant
) -> None:
    rules = Rules.read(converted.parts["tokenizer"].path)
    state = CTranslate2Speech().listener(converted.parts, Settings("fp32", 1)).begin()
    audio = np.random.default_rng(2).normal(0, 0.3, (4, 6400)).astype(np.float32)
    state.hear(audio)
    whole = written(state, 4, rules)
    assert {len(tokens) for tokens in whole} <= set(range(rules.positions - len(rules.prompt) + 1))
    assert not {token for tokens in whole for token in tokens} & {*rules.suppress, rules.end}
    assert not {tokens[0] for tokens in whole if tokens} & set(rules.suppress_first)
    assert written(state, 4, rules, [1, 2, 3, 99]) == [
        tokens[:n] for tokens, n in zip(whole, (1, 2, 3, 99), strict=True)
    ]
    favourite = max((token for tokens in whole for token in tokens), key=[t for each in whole for t in each].count)
    fewer = written(state, 4, replace(rules, suppress=(*rules.suppress, favourite)))
    assert fewer != whole
    assert not {token for tokens in fewer for token in tokens} & {favourite}


def test_a_spectrogram_is_that_of_transformers(folder: Path, converted: Variant) -> None:
    import transformers

    audio = np.random.default_rng(0).normal(0, 0.1, 32000).astype(np.float32)
    audio[20000:] = 0
    extractor = transformers.WhisperFeatureExtractor.from_pretrained(folder)
    wanted = extractor([audio], sampling_rate=16000, return_tensors="np").input_features[0]
    found = log_mel(audio, np.load(converted.parts["features"].path))
    assert found.shape == wanted.shape
    assert np.allclose(found, wanted, atol=1e-4)


def test_eight_bits_are_smaller_and_what_cannot_be_computed_is_refused(
    original: Variant, converted: Variant, tmp_path: Path
) -> None:
    step = Step("ctranslate2", {"quantization": "int8"})
    small = CTranslate2().apply(original, step, case(original, tmp_path))
    assert small.main.facts.size_bytes < converted.main.facts.size_bytes / 2
    listener = CTranslate2Speech().listener(small.parts, Settings("fp32"))
    assert listener.model.compute_type == "int8_float32"
    for options, match in (({"compute_type": "int3"}, "does not compute"), ({"beams": 3}, "no option beams")):
        with pytest.raises(InvalidInput, match=match):
            CTranslate2Speech().listener(converted.parts, Settings(options=options))
    with pytest.raises(InvalidInput, match="no precision 'bf16'"):
        CTranslate2Speech().listener(converted.parts, Settings("bf16"))
    with pytest.raises(InvalidInput, match="does not compute in 'int3'"):
        CTranslate2().apply(original, Step("ctranslate2", {"quantization": "int3"}), case(original, tmp_path))
    with pytest.raises(InvalidInput, match="no option"):
        CTranslate2().apply(original, Step("ctranslate2", {"bits": 8}), case(original, tmp_path))


def test_a_damaged_file_is_refused(converted: Variant, tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(converted.main.path.read_bytes()[:1000])
    (tmp_path / "config.json").write_bytes(converted.main.path.with_name("config.json").read_bytes())
    with pytest.raises(Failed, match="cannot load"):
        CTranslate2Speech().listener({**converted.parts, "main": at(converted.main, path)}, Settings())


def at(model: Model, path: Path) -> Model:
    return replace(model, path=path)


def test_both_kinds_of_weights_are_proposed_to_a_model_that_came_as_a_folder(original: Variant, tmp_path: Path) -> None:
    now = Recipe(runtime={"name": "openvino", "precision": "bf16", "threads": 1}, runner={"batch": 4})
    found = [proposal.recipe for proposal in CTranslate2().propose(case(original, tmp_path, now))]
    assert [recipe.steps[0].options.get("quantization", "float32") for recipe in found] == ["int8", "float32"]
    assert all(recipe.runtime == {**PLAIN, "threads": 1} and recipe.runner == now.runner for recipe in found)
    lever, again = CTranslate2(), now.with_step(Step("weight_only"))
    assert "other steps" in str(lever.refuse(case(original, tmp_path, again)))
    assert "not installed" in str(lever.refuse(replace(case(original, tmp_path), runtimes=("openvino",))))
    alone = Variant({"main": at(original.main, tmp_path / "main.xml")}, "encoder_decoder")
    assert "did not come as" in str(lever.refuse(case(alone, tmp_path)))


def test_a_folder_that_was_changed_or_is_gone_is_not_converted(folder: Path, original: Variant, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / folder.name))
    intake.load(copy)
    assert huggingface.beside(original.main.path).samefile(copy)
    told = json.loads((copy / "generation_config.json").read_text())
    (copy / "generation_config.json").write_text(json.dumps({**told, "suppress_tokens": []}))
    with pytest.raises(Failed, match="was changed"):
        CTranslate2().apply(original, Step("ctranslate2"), case(original, tmp_path))
    copy.rename(tmp_path / "moved")
    with pytest.raises(Failed, match="is not there"):
        CTranslate2().apply(original, Step("ctranslate2"), case(original, tmp_path))
    assert intake.load(folder) == original.main
    assert huggingface.beside(original.main.path).samefile(folder)


@pytest.mark.slow
def test_the_search_tries_it_and_its_bundle_writes_without_hasten(folder: Path, cached: Path, tmp_path: Path) -> None:
    sounds, draw = tmp_path / "clips", np.random.default_rng(0)
    sounds.mkdir()
    for number in range(12):
        with wave.open(str(sounds / f"{number}.wav"), "wb") as file:
            file.setparams((1, 2, 16000, 0, "NONE", ""))
            file.writeframes((3000 * draw.normal(size=4000 + 500 * number)).astype("<i2").tobytes())
    study = hasten.optimize(folder, sounds, only=["ctranslate2"], budget="5s")
    trial = next(trial for trial in study.trials if trial.recipe.steps == (Step("ctranslate2"),))
    assert trial.status != "failed", trial.reason
    write(study, trial, builder_of(study)(trial.recipe), tmp_path / "its.bundle")
    needed = (tmp_path / "its.bundle" / "requirements.txt").read_text().split()
    assert [line.partition("==")[0] for line in needed] == ["ctranslate2", "numpy"]
    program = "import runpy, sys; sys.modules.update(dict.fromkeys(('hasten', 'openvino', 'transformers', 'torch'))); "
    program += "sys.argv = ['', 'clips/3.wav']; runpy.run_path('its.bundle/run.py', run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": ""},
    )
    assert done.returncode == 0, done.stderr
    with hasten.load(tmp_path / "its.bundle") as loaded:
        assert done.stdout.strip() == loaded.transcribe(sounds / "3.wav")
