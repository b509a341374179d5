"""Whisper folders: converted with the original's own numbers and text, or refused with the reason."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from hasten import intake
from hasten.errors import InvalidInput
from hasten.intake.speech import prompt, rules, vocabulary
from hasten.recipe import Recipe
from hasten.runner import open_runner
from hasten.variant import Variant

pytest.importorskip("torch")
pytest.importorskip("transformers")
import speech_models


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return speech_models.write(tmp_path_factory.mktemp("whisper") / "tiny")


def clips(count: int = 4) -> list[dict[str, np.ndarray]]:
    draw = np.random.default_rng(1)
    return [{"audio": draw.normal(0, 0.1, 4000 + 4000 * n).astype(np.float32)} for n in range(count)]


def test_a_folder_becomes_parts_that_write_what_transformers_writes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    import transformers

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert intake.program(folder) == "encoder_decoder"
    model = intake.load(folder)
    words = intake.tokenizer(folder, model)
    assert words is not None
    parts = {"main": model, **intake.parts(folder, model), "tokenizer": words}
    assert sorted(parts) == ["encoder", "features", "main", "tokenizer"]
    assert "ScaledDotProductAttention" in parts["encoder"].facts.kinds
    assert intake.load(folder).sha256 == model.sha256

    samples = clips()
    original = transformers.WhisperForConditionalGeneration.from_pretrained(folder).eval()
    extractor = transformers.WhisperFeatureExtractor.from_pretrained(folder)
    heard = extractor([clip["audio"] for clip in samples], sampling_rate=16000, return_tensors="pt").input_features
    start = torch.tensor([[speech_models.START, speech_models.SILENT]]).repeat(len(samples), 1)
    whole = original.generate(heard, decoder_input_ids=start, max_length=24, do_sample=False, num_beams=1)
    listed, _ = vocabulary(folder / "tokenizer.json")
    wanted = []
    for row in whole.tolist():
        text = "".join(listed[token] or "" for token in row if token < speech_models.WORDS)
        wanted.append(text.replace("\u0120", " ").strip())
    recipe = Recipe(runtime={"precision": "fp32"}, runner={"batch": 3, "sort": True})
    with open_runner(Variant(parts, "encoder_decoder"), recipe, model.signature, None) as runner:
        found = [str(each["text"]) for each in runner.run(samples)]
        assert str(runner.run_one(samples[0])["text"]) == found[0]
        assert str(runner.submit(samples[1]).result()["text"]) == found[1]
    assert found == wanted
    assert any(found)


def test_clips_heard_after_others_have_left_are_heard_as_the_first_were(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hasten.runtimes.base import Settings
    from hasten.runtimes.openvino_speech import OpenVinoSpeech

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = intake.load(folder)
    listener = OpenVinoSpeech().listener({"main": model, **intake.parts(folder, model)}, Settings("fp32"))
    state = listener.begin()
    audio = np.random.default_rng(2).normal(0, 0.1, (4, 6400)).astype(np.float32)

    def heard(keep: dict[int, list[int]]) -> np.ndarray:
        state.hear(audio)
        rows, found = np.arange(4), np.full((4, 8, speech_models.WORDS + 3), np.nan)
        for at in range(8):
            if at in keep:
                state.keep(np.array(keep[at]))
                rows = rows[keep[at]]
            found[rows, at] = state.feed(7 + rows[:, None] + at, at)
        return found

    first, fewer, again = heard({}), heard({3: [1, 3], 5: [1]}), heard({})
    assert np.isfinite(first).all()
    assert np.array_equal(first, again)
    assert np.allclose(fewer[3], first[3], atol=1e-5)
    assert np.allclose(fewer[1, :5], first[1, :5], atol=1e-5)


@pytest.mark.parametrize("name", ["tokenizer.json", "generation_config.json", "preprocessor_config.json"])
def test_a_folder_that_lacks_a_file_is_refused(folder: Path, tmp_path: Path, name: str) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    (copy / name).unlink()
    with pytest.raises(InvalidInput, match=f"has no {name}"):
        intake.load(copy)


def test_a_folder_without_safetensors_is_refused(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    (copy / "model.safetensors").rename(copy / "pytorch_model.bin")
    with pytest.raises(InvalidInput, match=r"no model\.safetensors"):
        intake.load(copy)


def test_the_rules_of_decoding_are_those_of_the_folder(folder: Path) -> None:
    told = rules(folder)
    assert told["prompt"] == [speech_models.START, speech_models.SILENT]
    assert told["end"] == speech_models.END
    assert told["suppress"] == [3, speech_models.START, speech_models.SILENT]
    assert told["suppress_first"] == [0, speech_models.END]
    assert told["samples"] == speech_models.POSITIONS * 320
    assert told["words"][speech_models.END] is None


def test_a_multilingual_model_is_told_its_language_and_task() -> None:
    told = {
        "decoder_start_token_id": 1,
        "is_multilingual": True,
        "lang_to_id": {"<|en|>": 2, "<|de|>": 3},
        "task_to_id": {"transcribe": 4, "translate": 5},
        "no_timestamps_token_id": 6,
    }
    assert prompt(told, {}, {}) == [1, 2, 4, 6]
    assert prompt({**told, "language": "de"}, {}, {}) == [1, 3, 4, 6]
    assert prompt({**told, "language": "<|de|>", "task": "translate"}, {}, {}) == [1, 3, 5, 6]
    with pytest.raises(InvalidInput, match="no token for"):
        prompt({**told, "language": "xx"}, {}, {})


def test_a_vocabulary_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"model": {"type": "Unigram", "vocab": []}}))
    with pytest.raises(InvalidInput, match="no byte-pair vocabulary"):
        vocabulary(path)
