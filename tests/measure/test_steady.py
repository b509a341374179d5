"""A model whose answer depends on more than the sample is told of, with what it depends on."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from hasten.errors import InvalidInput
from hasten.intake.module import difference
from hasten.measure.steady import look
from hasten.runner.plan import RunnerSettings

SAMPLES = [{"x": np.full(4, number, np.float32)} for number in range(1, 5)]


class Fake:
    """A runner whose model is a function of one batch."""

    def __init__(self, model: Callable[[np.ndarray], np.ndarray]) -> None:
        self.settings, self.model = RunnerSettings(batch=1), model

    def run(self, samples: Sequence[Mapping[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
        found = []
        for start in range(0, len(samples), self.settings.batch):
            rows = np.stack([sample["x"] for sample in samples[start : start + self.settings.batch]])
            found += [{"y": row} for row in self.model(rows)]
        return found


def looked_at(model: Callable[[np.ndarray], Any]) -> dict[str, str]:
    runner: Any = Fake(model)
    found = look(runner, SAMPLES, runner.run(SAMPLES))
    assert runner.settings.batch == 1
    return found


def test_nothing_is_wrong_with_a_steady_model() -> None:
    assert looked_at(lambda rows: rows * 2) == {"chance": "", "mixed": "", "company": ""}


def test_a_state_that_changes_is_told_of() -> None:
    calls = itertools.count(1)
    assert "from one call to the next" in looked_at(lambda rows: rows * next(calls))["chance"]


def test_what_depends_on_the_batch_is_told_of() -> None:
    assert "when samples run together" in looked_at(lambda rows: rows - rows.mean(0) + 1)["company"]


def test_answers_that_cannot_be_told_apart_are_told_of() -> None:
    def as_many_as_there_are(rows: np.ndarray) -> np.ndarray:
        if len(rows) > 1:
            raise InvalidInput("output y of a batch cannot be told apart")
        return rows

    assert looked_at(as_many_as_there_are)["mixed"] == "output y of a batch cannot be told apart"
    assert "another shape" in looked_at(lambda rows: rows[:, : len(rows)])["mixed"]


@pytest.mark.parametrize(
    ("found", "wanted", "expected"),
    [
        ([1.0, -np.inf], [1.0, -np.inf], 0.0),
        ([1.0, np.nan], [1.0, np.nan], 0.0),
        ([1.0, np.inf], [1.0, -np.inf], np.inf),
        ([1.0, 3.0], [1.0, np.nan], np.inf),
        ([1.5, np.inf], [1.0, np.inf], 0.5),
    ],
)
def test_masks_of_infinity_agree_with_themselves_only(found: list[float], wanted: list[float], expected: float) -> None:
    assert difference({"y": np.array(found)}, {"y": np.array(wanted)}) == expected
