"""Levers that only edit settings: what they propose, in which order, and when they keep silent."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.device import Device
from hasten.errors import InvalidInput
from hasten.goal import Goal
from hasten.lab.trial import quality_key
from hasten.levers import Case, Proposal, all_levers
from hasten.levers.audio_context import AudioContext
from hasten.levers.batch import SIZES, Batch, neighbours
from hasten.levers.bucket import Bucket, edges, work
from hasten.levers.cache import Cache
from hasten.levers.execution import Execution, divisions
from hasten.levers.static_shape import StaticShape
from hasten.model import Dim, Facts, Model, Operator, Signature, Tensor
from hasten.recipe import Recipe, Step
from hasten.runner.plan import RunnerSettings, plan
from hasten.runner.transcribe import TranscribeSettings
from hasten.search.candidates import loses_as
from hasten.variant import Variant
from hasten.workload import Padding, Samples, Workload

ORT = Recipe(runtime={"name": "onnxruntime"}, runner={"batch": 32})
OV = Recipe(runtime={"name": "openvino", "precision": "fp32"}, runner={"batch": 32})
LEVERS = (Execution(), Batch(), Bucket(), StaticShape(), Cache())
LENGTHS = tuple(5 + (37 * i) % 196 for i in range(256))


def case(
    recipe: Recipe = OV,
    *,
    scenario: str = "offline",
    shape: tuple[Dim, ...] = ("batch", 3, 8, 8),
    lengths: tuple[int, ...] = (),
    padded: bool = True,
    duplicates: float = 0.0,
    cpus: int = 4,
    count: int = 256,
) -> Case:
    inputs = (Tensor("x", "float32", shape),)
    model = Model(Path("model.onnx"), "onnx", "0" * 64, Signature(inputs, inputs), Facts(1, 1))
    samples = Samples(Path("samples"), "1" * 64, count, inputs, "data", True)
    padding = Padding({"x": 0}, 0, padded, "" if padded else "outputs differ") if lengths else None
    workload = Workload(model, samples, "accuracy", scenario, None, padding)
    device = Device("paper", cpus=tuple(range(cpus)))
    split = workload.split()
    return Case(
        workload,
        Goal(),
        device,
        recipe,
        Path("unused"),
        split,
        (),
        {},
        lengths,
        duplicates,
        ("onnxruntime", "openvino"),
    )


CASES = [
    case(recipe, scenario=scenario, lengths=lengths, duplicates=duplicates, shape=shape)
    for recipe in (ORT, OV, OV.with_step(Step("int8")))
    for scenario in ("offline", "single-stream")
    for lengths, shape in (((), ("batch", 3, 8, 8)), (LENGTHS, ("batch", "length")), ((), (1, 3, 8, 8)))
    for duplicates in (0.0, 0.4)
]


@pytest.mark.parametrize("lever", LEVERS, ids=lambda lever: lever.name)
def test_a_proposal_edits_settings_alone_and_changes_something(lever):
    for each in CASES:
        proposals = list(lever.propose(each))
        assert len({p.recipe.id for p in proposals}) == len(proposals)
        for proposal in proposals:
            assert proposal.recipe != each.recipe
            assert proposal.recipe.steps == each.recipe.steps
            assert proposal.lever == lever.name
            assert proposal.why
            assert proposal.gain.source
            RunnerSettings.from_recipe(proposal.recipe.runner)


@pytest.mark.parametrize("lever", LEVERS, ids=lambda lever: lever.name)
def test_the_best_prediction_comes_first(lever):
    for each in CASES:
        factors = [p.gain.factor for p in lever.propose(each)]
        assert factors == sorted(factors, reverse=True)


@pytest.mark.parametrize("lever", LEVERS, ids=lambda lever: lever.name)
def test_a_settings_lever_is_registered_and_refuses_to_be_a_step(lever):
    assert type(all_levers()[lever.name]) is type(lever)
    with pytest.raises(InvalidInput, match=r"edits settings and cannot be a \[\[step\]\]"):
        lever.apply(Variant({}), Step(lever.name), case())


# -- execution --------------------------------------------------------------------------------------------------------


@given(st.integers(1, 256))
def test_divisions_use_every_core_and_leave_none_out(cores):
    found = divisions(cores)
    assert all(streams * threads == cores for streams, threads in found)
    assert {(cores, 1), (1, cores)} <= set(found)
    assert len(found) == sum(cores % divisor == 0 for divisor in range(1, cores + 1))


def test_offline_divides_the_cores_and_a_single_stream_does_not():
    offline = {(p.recipe.runtime["streams"], p.recipe.runtime["threads"]) for p in Execution().propose(case())}
    assert offline == {(4, 1), (2, 2), (1, 4)}
    single = Execution().propose(case(scenario="single-stream"))
    assert [(p.recipe.runtime["streams"], p.recipe.runtime["threads"]) for p in single] == [(1, 4), (1, 2), (1, 1)]


def test_the_division_that_a_recipe_has_is_not_proposed():
    now = OV.edit("runtime", streams=2, threads=2)
    found = [(p.recipe.runtime["streams"], p.recipe.runtime["threads"]) for p in Execution().propose(case(now))]
    assert found == [(4, 1), (1, 4)]
    assert list(Execution().propose(case(OV.edit("runtime", streams=1, threads=1), cpus=1))) == []


# -- batch ------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 500))
def test_neighbouring_batches_are_other_sizes_of_the_ladder_nearest_first(batch):
    found = neighbours(batch)
    assert batch not in found
    assert set(found) <= set(SIZES)
    steps = [abs(SIZES.index(size) - min(range(len(SIZES)), key=lambda i: abs(SIZES[i] - batch))) for size in found]
    assert steps == sorted(steps)


def test_every_batch_size_can_be_reached_from_any_other():
    reached, fresh = {32}, {32}
    while fresh:
        fresh = {size for batch in fresh for size in neighbours(batch)} - reached
        reached |= fresh
    assert reached == set(SIZES)


def test_a_batch_is_never_larger_than_the_data_nor_given_to_a_model_with_a_fixed_one():
    assert {p.recipe.runner["batch"] for p in Batch().propose(case(count=40))} == {16, 8}
    assert list(Batch().propose(case(shape=(1, 3, 8, 8)))) == []
    assert list(Batch().propose(case(scenario="single-stream"))) == []
    tokens = Recipe(OV.steps, OV.runtime, {"form": "bucket", "buckets": [64], "batch_tokens": 1024})
    assert list(Batch().propose(case(tokens, lengths=LENGTHS))) == []


# -- buckets ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 60), min_size=1, max_size=20), st.integers(1, 4), st.sampled_from([1, 4, 8]))
def test_bucket_edges_pad_no_more_than_any_other_choice_of_as_many(lengths, count, grain):
    found = edges(lengths, count, grain)
    assert list(found) == sorted(set(found))
    assert len(found) <= count
    assert found[-1] >= max(lengths)
    sizes = sorted({-(-length // grain) * grain for length in lengths})
    assert set(found) <= set(sizes)

    def padded(chosen: tuple[int, ...]) -> int:
        return sum(min(edge for edge in chosen if edge >= length) for length in lengths)

    every = [
        chosen
        for number in range(1, min(count, len(sizes)) + 1)
        for chosen in itertools.combinations(sizes, number)
        if chosen[-1] == sizes[-1]
    ]
    assert padded(found) == min(padded(chosen) for chosen in every)


@given(st.lists(st.integers(1, 200), min_size=1, max_size=60), st.integers(1, 16))
def test_sorting_never_computes_more(lengths, batch):
    plain = Recipe(runner={"batch": batch})
    assert work(lengths, plain.edit("runner", sort=True)) <= work(lengths, plain)
    assert work(lengths, plain) >= sum(lengths)


def test_a_predicted_gain_is_what_the_batch_plan_counts():
    each = case(ORT, lengths=LENGTHS)
    (sorting,) = [p for p in Bucket().propose(each) if p.recipe == ORT.edit("runner", sort=True)]
    before = sum((b.length or 0) * b.size for b in plan(LENGTHS, len(LENGTHS), RunnerSettings(32), True))
    after = sum((b.length or 0) * b.size for b in plan(LENGTHS, len(LENGTHS), RunnerSettings(32, sort=True), True))
    assert sorting.gain.factor == pytest.approx(before / after)
    assert sorting.gain.factor > 1.5


def test_static_buckets_are_for_openvino_and_hold_every_sample():
    found = [p.recipe.runner for p in Bucket().propose(case(OV, lengths=LENGTHS))]
    static = [runner for runner in found if runner.get("static")]
    assert len(static) >= 2
    assert all(max(LENGTHS) <= runner["buckets"][-1] for runner in static)
    assert not any("batch" in runner for runner in static)
    assert not any(p.recipe.runner.get("static") for p in Bucket().propose(case(ORT, lengths=LENGTHS)))
    single = [p.recipe.runner for p in Bucket().propose(case(OV, lengths=LENGTHS, scenario="single-stream"))]
    assert single
    assert all(runner["batch"] == 1 and runner["static"] for runner in single)
    assert list(Bucket().propose(case(ORT, lengths=LENGTHS, scenario="single-stream"))) == []


def test_buckets_are_tuned_from_neighbour_to_neighbour():
    first = next(p.recipe for p in Bucket().propose(case(OV, lengths=LENGTHS)) if p.recipe.runner.get("static"))
    found = [p.recipe.runner for p in Bucket().propose(case(first, lengths=LENGTHS))]
    tokens = first.runner["batch_tokens"]
    assert {runner["batch_tokens"] for runner in found} >= {tokens, tokens * 2}
    assert any("static" not in runner for runner in found)
    assert first.runner not in found


def test_samples_that_cannot_be_padded_or_are_all_alike_have_no_buckets():
    assert list(Bucket().propose(case(OV, lengths=LENGTHS, padded=False))) == []
    assert list(Bucket().propose(case(OV))) == []


# -- static shapes and the cache --------------------------------------------------------------------------------------


def test_static_shapes_are_proposed_where_openvino_meets_a_dynamic_axis():
    def proposed(each: Case) -> list[Proposal]:
        return list(StaticShape().propose(each))

    assert [p.recipe for p in proposed(case(OV))] == [OV.edit("runner", static=True)]
    assert proposed(case(ORT)) == []
    assert proposed(case(OV, shape=(1, 3, 8, 8))) == []
    assert proposed(case(OV, lengths=LENGTHS)) == []
    assert proposed(case(OV.edit("runner", static=True))) == []


def test_a_response_cache_needs_samples_that_repeat():
    assert list(Cache().propose(case(duplicates=0.01))) == []
    (found,) = Cache().propose(case(duplicates=0.5))
    assert found.gain.factor == pytest.approx(2.0)
    assert found.recipe.cache == {"kind": "identity", "entries": 4096}
    assert list(Cache().propose(case(found.recipe, duplicates=0.5))) == []
    each = case(duplicates=0.5)
    made = replace(each, workload=replace(each.workload, samples=replace(each.workload.samples, kind="synthetic")))
    assert list(Cache().propose(made)) == [], "samples that hasten made repeat by accident"


def test_similar_inputs_are_proposed_at_the_distances_of_the_samples_and_never_without_an_allowed_loss():
    each = replace(case(), nearest=tuple(i / 200 for i in range(1, 101)))
    found = list(Cache().propose(each))
    assert [p.recipe.cache["distance"] for p in found] == [0.3, 0.15, 0.075, 0.025]
    assert {p.recipe.cache["kind"] for p in found} == {"semantic"}
    assert list(Cache().propose(replace(each, goal=Goal.parse("throughput", "0pt")))) == []
    median = replace(each, goal=Goal.parse("latency"))
    assert [p.recipe.cache["distance"] for p in Cache().propose(median)] == [0.3], "fewer hits leave a median as it is"
    assert list(Cache().propose(replace(each, goal=Goal.parse("size")))) == []
    small = Operator("add", "Add", 1000, 1000)
    assert list(Cache().propose(replace(each, operators=(small,)))) == [], "searching would cost more than the model"


def test_a_cache_of_similar_inputs_that_lost_quality_condemns_only_what_is_as_generous():
    lost, near, far = (OV.edit("cache", kind="semantic", distance=d) for d in (0.2, 0.1, 0.3))
    assert not loses_as(OV.edit("runner", sort=True), lost)
    assert not loses_as(near, lost)
    assert loses_as(far, lost)
    assert len({quality_key(recipe) for recipe in (OV, lost, near, far)}) == 4
    assert quality_key(OV) == quality_key(OV.edit("cache", kind="identity"))


def spoken(recipe: Recipe) -> Case:
    """The case of a speech model."""
    found = case(recipe)
    return replace(found, workload=replace(found.workload, program="encoder_decoder"))


def test_a_speech_model_is_offered_margins_that_its_runner_takes_and_the_best_guess_first():
    proposals = list(AudioContext().propose(spoken(OV)))
    gains = [proposal.gain.factor for proposal in proposals]
    assert gains == sorted(gains, reverse=True)
    margins = [TranscribeSettings.read(proposal.recipe.runner).margin_s for proposal in proposals]
    assert len(set(margins)) == len(margins) > 2
    now = proposals[0].recipe
    again = [proposal.recipe.runner["margin_s"] for proposal in AudioContext().propose(spoken(now))]
    assert again == [margin for margin in margins if margin != margins[0]]


def test_clips_heard_for_their_own_length_are_sorted_into_batches():
    short = OV.edit("runner", margin_s=5.0, batch=4)
    proposals = list(Batch().propose(spoken(short)))
    assert {proposal.recipe.runner["batch"] for proposal in proposals} >= {2, 8, 16}
    assert all(proposal.recipe.runner["sort"] for proposal in proposals)
    assert not any(proposal.recipe.runner.get("sort") for proposal in Batch().propose(spoken(OV)))


def test_what_lost_by_hearing_little_does_not_speak_against_hearing_more():
    lost = OV.edit("runner", margin_s=2.0)
    assert loses_as(OV.edit("runner", margin_s=1.0), lost)
    assert not loses_as(OV.edit("runner", margin_s=5.0), lost)
    assert not loses_as(OV, lost)
