"""OpenVINO GenAI on a tiny decoder: the answers and the losses are those of OpenVINO fed token by token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("openvino_genai")

from hasten.errors import Failed, InvalidInput
from hasten.runner.generate import Generator, open_generator
from hasten.runtimes.base import Settings, language_of, runs, runtime
from hasten.runtimes.openvino_genai import OpenVinoPipeline

EXACT = {"precision": "fp32", "kv_cache_precision": "f32", "threads": 1}
TEXTS = ["the train to the north", "people", "leaves at seven, and people are on it once more", "to", "on it"]
SAMPLES = [{"text": np.array(text)} for text in TEXTS]


def opened(tiny: Any, name: str, settings: dict[str, Any], **runner: Any) -> Generator:
    return open_generator(
        language_of(runtime(name)), tiny.model, tiny.words, EXACT | settings, {"new_tokens": 9, **runner}
    )


def said(generator: Generator) -> list[str]:
    return [str(answer["text"]) for answer in generator.run(SAMPLES)]


def test_answers_and_losses_are_those_of_the_same_model_fed_token_by_token(tiny: Any) -> None:
    with opened(tiny, "openvino", {}) as generator:
        generator.to_the_end = True
        wanted = said(generator)
        losses = [loss["nll"] for loss in generator.judge(SAMPLES)]
        generator.to_the_end = False
        ended = said(generator)
    for batch in (1, 2, 16):
        with opened(tiny, "openvino_genai", {"max_num_batched_tokens": 7}, batch=batch) as generator:
            np.testing.assert_allclose([loss["nll"] for loss in generator.judge(SAMPLES)], losses, rtol=1e-4)
            assert said(generator) == ended
            generator.to_the_end = True
            assert said(generator) == wanted
            assert all(0 < each.first_s < each.whole_s and each.tokens == 9 for each in generator.timings)


def test_prompts_of_several_callers_share_steps_and_one_that_is_left_leaves_no_trace(
    tiny: Any,
) -> None:
    with opened(tiny, "openvino_genai", {}, batch=4) as generator:
        wanted = said(generator)
        pieces = generator.stream(TEXTS[2], 50)
        next(pieces)
        pieces.close()
        waiting = [generator.submit(sample) for sample in SAMPLES * 3]
        assert [str(each.result()["text"]) for each in waiting] == wanted * 3
        assert ["".join(generator.stream(text)) for text in TEXTS] == wanted
        assert len(generator.steps(SAMPLES, 4)) == 4
        with pytest.raises(Failed, match="times of its operators"):
            generator.operators(SAMPLES)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"streams": 2}, "one stream"),
        ({"mmap": False}, "no option mmap"),
        ({"precision": "int8"}, "no precision"),
        ({"max_num_batched_tokens": 0}, "makes no sense"),
    ],
)
def test_settings_that_it_does_not_have_are_refused(tiny: Any, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        opened(tiny, "openvino_genai", settings)


@pytest.mark.parametrize("runner", [{"lookup": 3}, {"prefix": True}])
def test_what_feeds_tokens_one_by_one_is_refused(tiny: Any, runner: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="token by token"):
        opened(tiny, "openvino_genai", {}, **runner)


def test_what_is_no_decoder_is_refused(tiny: Any, tmp_path: Path) -> None:
    model, words = tiny.model, tiny.words
    bare = type(model)(words, "openvino", model.sha256, type(model.signature)((), ()), model.facts)
    with pytest.raises(InvalidInput, match="no decoder"):
        OpenVinoPipeline(bare, Settings())
    (tmp_path / "broken.xml").write_text("<net>")
    (tmp_path / "broken.bin").write_bytes(b"")
    broken = type(model)(tmp_path / "broken.xml", "openvino", model.sha256, model.signature, model.facts)
    with pytest.raises(Failed, match=r"openvino_genai cannot load broken\.xml"):
        OpenVinoPipeline(broken, Settings())
    with pytest.raises(InvalidInput, match="language models alone"):
        runtime("openvino_genai").load(model, Settings())


def test_it_is_for_language_models_alone() -> None:
    assert runs(runtime("openvino_genai"), "generate")
    assert not runs(runtime("openvino_genai"), "single")
    assert runs(runtime("openvino"), "single")
