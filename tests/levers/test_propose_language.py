"""What levers of language models propose on paper: which runtime, with which settings, and when not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lever_models import paper_case

from hasten.intake.causal import beside
from hasten.levers.base import Case
from hasten.levers.continuous_batching import ContinuousBatching
from hasten.levers.execution import Execution
from hasten.levers.lookup import Lookup
from hasten.levers.merge import Merge
from hasten.levers.onnx_decoder import OnnxDecoder
from hasten.levers.prefix import Prefix
from hasten.recipe import Recipe, Step

RUNTIMES = ("openvino", "openvino_genai", "onnxruntime_genai")
OV = Recipe(runtime={"name": "openvino", "precision": "bf16", "streams": 2, "threads": 1}, runner={"new_tokens": 8})
GENAI = OV.edit("runtime", name="openvino_genai", streams=None)


def language_case(
    recipe: Recipe = OV, path: Path = Path("model.xml"), scenario: str = "offline", **more: object
) -> Case:
    case = paper_case({"MatMul": 9}, recipe, runtimes=RUNTIMES, **more)
    model = replace(case.workload.model, path=path, format="openvino")
    return replace(case, workload=replace(case.workload, model=model, program="generate", scenario=scenario))


def test_continuous_batching_moves_what_openvino_executes_and_keeps_its_other_settings() -> None:
    merged = OV.with_step(Step("merge")).edit("runner", sort=True).edit("runtime", mmap=False)
    (found,) = ContinuousBatching().propose(language_case(merged))
    assert found.recipe.runtime == {"name": "openvino_genai", "precision": "bf16", "threads": 1}
    assert found.recipe.runner == {"new_tokens": 8, "batch": 8}
    assert found.recipe.has("merge")
    (alone,) = ContinuousBatching().propose(language_case(scenario="single-stream"))
    assert "batch" not in alone.recipe.runner
    assert alone.gain.factor < found.gain.factor


def test_continuous_batching_is_refused_where_openvino_does_not_feed_or_is_fed_otherwise() -> None:
    lever = ContinuousBatching()
    for recipe, said in (
        (GENAI, "OpenVINO does not execute"),
        (OV.edit("runtime", device="GPU"), "OpenVINO does not execute"),
        (OV.edit("runner", lookup=4), "token by token"),
        (OV.edit("runner", prefix=True), "token by token"),
    ):
        assert said in str(lever.refuse(language_case(recipe)))
        assert not list(lever.propose(language_case(recipe)))
    assert "not installed" in str(lever.refuse(replace(language_case(), runtimes=("openvino",))))


def test_what_schedules_answers_itself_gets_no_drafts_no_beginnings_and_one_stream() -> None:
    case = replace(language_case(GENAI), shared=0.9)
    assert not list(Lookup().propose(case))
    assert not list(Prefix().propose(case))
    assert {each.recipe.runtime["streams"] for each in Execution().propose(case)} == {1}
    assert list(Merge().propose(case)), "merged products run there, too"


def test_the_onnx_decoder_is_for_models_that_came_as_folders(tmp_path: Path) -> None:
    path, lever = tmp_path / "small.xml", OnnxDecoder()
    assert "Hugging Face folder" in str(lever.refuse(language_case(path=path)))
    beside(path).symlink_to(tmp_path)
    found = list(lever.propose(language_case(OV.edit("runtime", kv_cache_precision="u8"), path)))
    assert [each.recipe.steps[0].options["bits"] for each in found] == [4, 32], "best first"
    assert all(each.recipe.runtime == {"name": "onnxruntime_genai", "streams": 2, "threads": 1} for each in found), (
        "without what belongs to OpenVINO"
    )
    assert "other steps" in str(lever.refuse(language_case(OV.with_step(Step("merge")), path)))
    assert "not installed" in str(lever.refuse(replace(language_case(path=path), runtimes=("openvino",))))
