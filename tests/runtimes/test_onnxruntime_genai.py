"""ONNX Runtime GenAI on a tiny decoder that its builder wrote: the answers are those of OpenVINO, in every way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("openvino_genai")
pytest.importorskip("onnxruntime_genai")

from hasten.errors import Failed, InvalidInput
from hasten.levers.onnx_decoder import build
from hasten.model import Model
from hasten.runner.generate import Generator, open_generator
from hasten.runtimes.base import Settings, language_of, runtime

TEXTS = ["people", "the train to the north leaves at seven", "the train to the north leaves at noon", "on it once more"]
SAMPLES = [{"text": np.array(text)} for text in TEXTS]
WAYS: list[dict[str, Any]] = [{}, {"batch": 3, "sort": True}, {"lookup": 4}, {"prefix": True}]


@pytest.fixture(scope="module")
def built(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp("built")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        build(tiny.folder, folder, "fp32")
    return replace(tiny.model, path=folder / "genai_config.json", format="onnx-genai")


def opened(model: Model, words: Path, name: str, settings: dict[str, Any], runner: dict[str, Any]) -> Generator:
    chosen = {"precision": "fp32", "threads": 1, **settings}
    generator = open_generator(language_of(runtime(name)), model, words, chosen, {"new_tokens": 9, **runner})
    generator.to_the_end = True
    return generator


def test_however_prompts_are_decoded_the_answers_are_those_of_openvino(tiny: Any, built: Model) -> None:
    with opened(tiny.model, tiny.words, "openvino", {"kv_cache_precision": "f32"}, {}) as generator:
        wanted = [str(answer["text"]) for answer in generator.run(SAMPLES)]
        losses = [loss["nll"] for loss in generator.judge(SAMPLES)]
    for way in WAYS:
        with opened(built, tiny.words, "onnxruntime_genai", {}, way) as generator:
            assert [str(answer["text"]) for answer in generator.run(SAMPLES)] == wanted, way
            np.testing.assert_allclose([loss["nll"] for loss in generator.judge(SAMPLES)], losses, rtol=1e-3)
            if way.get("prefix"):
                assert generator.reused()["prefix_hit_rate"][0] > 0


def test_a_text_grows_past_the_first_room_and_not_past_what_the_model_takes(
    built: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hasten.runtimes.onnxruntime_genai.LEAST_ROOM", 16)
    monkeypatch.setattr("hasten.runtimes.onnxruntime_genai.READ_AT_ONCE", 10)
    decoder = language_of(runtime("onnxruntime_genai")).decoder(built, Settings(threads=1))
    ids = np.random.default_rng(0).integers(3, 290, (1, 257))
    where, whole = np.arange(257)[None], np.ones((1, 257), np.int64)
    at_once = decoder.begin().feed(ids[:, :60], whole[:, :60], where[:, :60], 15)
    state = decoder.begin()
    state.feed(ids[:, :12], whole[:, :12], where[:, :12], 1)
    pieces = state.feed(ids[:, 12:60], whole[:, :60], where[:, 12:60], 15)
    np.testing.assert_allclose(pieces, at_once, atol=1e-4)
    with pytest.raises(Failed, match="257 tokens is longer than the 256"):
        state.feed(ids[:, 60:], whole, where[:, 60:], 1)


def test_what_it_cannot_open_or_do_is_refused(built: Model, tmp_path: Path) -> None:
    language = language_of(runtime("onnxruntime_genai"))
    with pytest.raises(InvalidInput, match="no precision"):
        language.decoder(built, Settings("bf16"))
    with pytest.raises(InvalidInput, match="no option mmap"):
        language.decoder(built, Settings(options={"mmap": True}))
    with pytest.raises(InvalidInput, match="language models alone"):
        runtime("onnxruntime_genai").load(built, Settings())
    (tmp_path / "genai_config.json").write_text("{}")
    with pytest.raises(Failed, match=r"cannot load genai_config\.json"):
        language.decoder(replace(built, path=tmp_path / "genai_config.json"), Settings())
    with pytest.raises(Failed, match="cannot build"):
        build(tmp_path, tmp_path / "built", "fp32")
