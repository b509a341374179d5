"""The batching policy, over arbitrary lengths and settings."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.errors import InvalidInput
from hasten.runner import RunnerSettings, plan

lengths = st.lists(st.integers(1, 300), min_size=1, max_size=60)
policies = st.one_of(
    st.builds(RunnerSettings, batch=st.integers(1, 40), sort=st.booleans(), static=st.booleans()),
    st.builds(
        RunnerSettings,
        batch=st.integers(1, 40),
        form=st.just("bucket"),
        sort=st.booleans(),
        buckets=st.sets(st.integers(1, 300), min_size=1, max_size=5).map(lambda found: tuple(sorted(found))),
        static=st.booleans(),
        batch_tokens=st.none() | st.integers(1, 3000),
    ),
)
fixed_rows = st.none() | st.integers(1, 8)


@given(lengths, policies, st.booleans(), fixed_rows)
def test_every_sample_runs_exactly_once_and_fits_its_batch(lengths, settings, can_pad, fixed_rows):
    batches = plan(lengths, len(lengths), settings, can_pad, fixed_rows)
    assert sorted(index for batch in batches for index in batch.indices) == list(range(len(lengths)))
    for batch in batches:
        assert 1 <= len(batch.indices) <= batch.size <= (fixed_rows or settings.rows_of(batch.length))
        assert all(lengths[index] <= batch.length for index in batch.indices)
        if fixed_rows:
            assert batch.size == fixed_rows


@given(lengths, policies)
def test_without_padding_only_equal_lengths_share_a_batch(lengths, settings):
    for batch in plan(lengths, len(lengths), settings, can_pad=False):
        assert {lengths[index] for index in batch.indices} == {batch.length}


@given(lengths, policies)
def test_static_batches_have_one_shape_for_each_length(lengths, settings):
    static = RunnerSettings(**{**vars(settings), "static": True})
    batches = plan(lengths, len(lengths), static, can_pad=True)
    sizes = {}
    for batch in batches:
        assert sizes.setdefault(batch.length, batch.size) == batch.size
    assert len(sizes) <= len(settings.buckets) + 1


@given(lengths, st.integers(1, 40))
def test_sorting_never_pads_more(lengths, batch):
    def tokens(sort):
        found = plan(lengths, len(lengths), RunnerSettings(batch, sort=sort), can_pad=True)
        return sum(b.length * b.size for b in found)

    assert tokens(True) <= tokens(False)


@given(lengths, policies.filter(lambda settings: settings.buckets))
def test_fixed_shapes_in_buckets_never_cost_more_than_filling_each_bucket_up(lengths, settings):
    static = RunnerSettings(**{**vars(settings), "static": True})
    found = sum(b.length * b.size for b in plan(lengths, len(lengths), static, can_pad=True))
    bounds = [*settings.buckets, max(*lengths, settings.buckets[-1])]
    apart = 0
    for bound in sorted(set(bounds)):
        members = [n for n in lengths if next(b for b in bounds if n <= b) == bound]
        apart += math.ceil(len(members) / settings.rows_of(bound)) * settings.rows_of(bound) * bound
    assert found <= apart


@given(st.integers(0, 50), st.integers(1, 9), st.booleans())
def test_samples_of_one_shape_run_in_order_of_arrival(count, batch, static):
    batches = plan(None, count, RunnerSettings(batch, static=static), can_pad=False)
    assert [index for b in batches for index in b.indices] == list(range(count))
    assert all(b.size == batch for b in batches[:-1])
    if batches and static:
        assert batches[-1].size == batch


def test_longest_batches_run_first_when_sorted_and_the_odd_one_stands_where_it_pads_least():
    def sorted_in_pairs(lengths):
        batches = plan(lengths, len(lengths), RunnerSettings(2, sort=True), can_pad=True)
        return [([lengths[i] for i in batch.indices], batch.length) for batch in batches]

    assert sorted_in_pairs([3, 9, 1, 7, 5]) == [([7, 9], 9), ([3, 5], 5), ([1], 1)]
    assert sorted_in_pairs([8, 8, 5, 1, 1]) == [([8, 8], 8), ([5], 5), ([1, 1], 1)]
    assert sorted_in_pairs([2, 2, 1]) == [([2, 2], 2), ([1], 1)]


def test_rows_follow_the_tokens_of_a_bucket():
    settings = RunnerSettings.from_recipe({"form": "bucket", "buckets": [64, 16], "batch_tokens": 128})
    assert settings.buckets == (16, 64)
    assert (settings.rows_of(16), settings.rows_of(64), settings.rows_of(500)) == (8, 2, 1)


@pytest.mark.parametrize(
    "runner",
    [
        {"bach": 3},
        {"batch": 0},
        {"batch": True},
        {"batch": "8"},
        {"sort": 1},
        {"form": "heap"},
        {"form": "bucket"},
        {"form": "bucket", "buckets": [0, 4]},
        {"form": "bucket", "buckets": 16},
        {"buckets": [4, 8]},
        {"batch_tokens": 64},
    ],
)
def test_a_runner_section_that_makes_no_sense_is_invalid_input(runner):
    with pytest.raises(InvalidInput):
        RunnerSettings.from_recipe(runner)
