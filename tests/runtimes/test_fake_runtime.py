"""The fake runtime that people may use in their own tests."""

from __future__ import annotations

import numpy as np
import pytest
from small_models import linear

from hasten.errors import Failed
from hasten.runtimes import Settings
from hasten.runtimes.fake import FakeRuntime


def test_outputs_are_row_sums_and_costs_are_reported_and_spent(tmp_path):
    clock = [0.0]

    def spend(seconds):
        clock[0] += seconds

    session = FakeRuntime({"MatMul": 30.0, "Relu": 20.0}, spend=spend).load(linear(tmp_path)[0], Settings())
    batch = {"x": np.arange(8, dtype=np.float32).reshape(2, 4)}
    assert session.submit(batch).result()["y"].tolist() == [[6.0] * 3, [22.0] * 3]
    assert clock[0] == pytest.approx(50e-6)
    assert {o.name: o.microseconds for o in session.operators(batch)} == {"MatMul": 30.0, "Relu": 20.0}
    assert session.batches == [{"x": (2, 4)}]


def test_it_fails_when_told_to(tmp_path):
    session = FakeRuntime(fail="raise").load(linear(tmp_path)[0], Settings())
    with pytest.raises(Failed, match="told to fail"):
        session.submit({"x": np.ones((1, 4), np.float32)}).result()


def test_it_prints_garbage_and_still_answers(tmp_path, capsys):
    session = FakeRuntime(fail="garbage").load(linear(tmp_path)[0], Settings())
    assert session.run({"x": np.ones((1, 4), np.float32)})["y"].tolist() == [[4.0] * 3]
    assert "garbage" in capsys.readouterr().out
