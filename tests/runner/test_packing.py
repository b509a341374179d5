"""Sequences laid end to end: nothing lost, nothing mixed, little left empty."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.errors import InvalidInput
from hasten.model import Signature, Tensor
from hasten.runner import RunnerSettings, packing, plan
from hasten.runner.assembly import Buffers
from hasten.workload import Padding

lengths = st.lists(st.integers(1, 80), min_size=1, max_size=80)
rows = st.tuples(st.integers(8, 64), st.integers(1, 12), st.integers(1, 8))
SIGNATURE = Signature(
    (
        Tensor("ids", "int64", ("rows", "tokens")),
        Tensor("mask", "int64", ("rows", "tokens")),
        Tensor(packing.SEGMENTS, "int64", ("rows", "tokens")),
        Tensor(packing.POSITIONS, "int64", ("rows", "tokens")),
        Tensor(packing.MEAN, "float32", ("rows", "segments", "tokens")),
        Tensor(packing.FIRST, "int64", ("sequences",)),
    ),
    (Tensor("hidden", "float32", None), Tensor("pooled", "float32", None)),
)
PADDING = Padding({"ids": 7.0, "mask": 0.0}, 0, True, "", {"hidden": 0})


@given(lengths, rows)
def test_every_sequence_lies_whole_in_one_row_and_touches_no_other(lengths, shape):
    row_tokens, most, segments = shape
    batches = packing.pack(lengths, row_tokens, most, segments)
    assert sorted(i for batch in batches for i in batch.indices) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch.rows) <= batch.size <= most
        for row in batch.rows:
            assert len(row) <= segments
            at = 0
            for index, start in sorted(row, key=lambda place: place[1]):
                assert start == at
                at += lengths[index]
            assert at <= batch.length


@given(lengths, rows)
def test_no_two_rows_could_have_been_one(lengths, shape):
    row_tokens, most, segments = shape
    fitting = [n for n in lengths if n <= row_tokens]
    used = [
        (sum(fitting[i] for i, _ in row), len(row))
        for batch in packing.pack(fitting, row_tokens, most, segments)
        for row in batch.rows
    ]
    for at, (tokens, count) in enumerate(used):
        for others, more in used[at + 1 :]:
            assert tokens + others > row_tokens or count + more > segments or count == segments or more == segments


@given(st.lists(st.integers(1, 30), min_size=1, max_size=30), rows)
def test_what_is_assembled_is_what_is_split_again(lengths, shape):
    row_tokens, most, segments = shape
    draw = np.random.default_rng(0)
    samples = [{"ids": draw.integers(10, 99, n), "mask": np.ones(n, np.int64)} for n in lengths]
    buffers = Buffers()
    for batch in packing.pack(lengths, row_tokens, most, segments):
        inputs, taken = packing.assemble_packed(samples, batch, SIGNATURE, PADDING, buffers)
        hidden = inputs["ids"][..., None].astype(np.float32)
        pooled = np.matmul(inputs[packing.MEAN], hidden).reshape(-1, 1)
        first = hidden.reshape(-1)[inputs[packing.FIRST]]
        assert inputs["mask"].sum() == sum(lengths[i] for i in batch.indices)
        assert ((inputs[packing.SEGMENTS] > 0) == (inputs["mask"] > 0)).all()
        found = packing.split_packed({"hidden": hidden, "pooled": pooled}, batch, lengths, PADDING)
        starts = packing.split_packed({"hidden": hidden, "pooled": first}, batch, lengths, PADDING)
        for index, own, begun in zip(batch.indices, found, starts, strict=True):
            ids = samples[index]["ids"]
            np.testing.assert_array_equal(own["hidden"][:, 0], ids)
            np.testing.assert_allclose(own["pooled"], [ids.mean()], rtol=1e-5)
            assert begun["pooled"] == ids[0]
        for row, line in zip(inputs[packing.POSITIONS], batch.rows, strict=False):
            for index, start in line:
                np.testing.assert_array_equal(row[start : start + lengths[index]], np.arange(lengths[index]))
        buffers.give(taken)


def test_a_sample_alone_fills_its_row():
    sample = {"ids": np.array([4, 5, 6]), "mask": np.ones(3, np.int64)}
    inputs = packing.alone(sample, SIGNATURE, PADDING)
    assert inputs["ids"].tolist() == [[4, 5, 6]]
    assert inputs[packing.SEGMENTS].tolist() == [[1, 1, 1]]
    np.testing.assert_allclose(inputs[packing.MEAN], [[[1 / 3] * 3]])


def test_the_last_batch_is_no_larger_than_it_must_be():
    sizes = [batch.size for batch in packing.pack([10] * 9, 10, 8, 4)]
    assert sizes == [8, 2]


def test_the_plan_packs_where_the_recipe_says_so():
    settings = RunnerSettings.from_recipe({"form": "pack", "row_tokens": 32, "rows": 2, "static": True})
    (batch,) = plan([20, 10, 30], 3, settings, can_pad=True)
    assert isinstance(batch, packing.Packed)
    assert (batch.length, batch.size, sorted(batch.indices)) == (32, 2, [0, 1, 2])


@pytest.mark.parametrize(
    "runner",
    [{"form": "pack"}, {"row_tokens": 32, "rows": 2}, {"form": "pack", "row_tokens": 32}, {"form": "pack", "rows": 0}],
)
def test_settings_that_do_not_fit_are_refused(runner):
    with pytest.raises(InvalidInput):
        RunnerSettings.from_recipe(runner)


def test_an_input_that_does_not_vary_cannot_be_packed():
    other = Signature((*SIGNATURE.inputs, Tensor("speed", "float32", ("rows", 3))), SIGNATURE.outputs)
    sample = {"ids": np.array([4]), "mask": np.array([1]), "speed": np.zeros(3, np.float32)}
    with pytest.raises(InvalidInput, match="speed cannot be packed"):
        packing.alone(sample, other, PADDING)
