"""The profile of a language model: one decoding step, on a decoder whose every step is counted."""

from __future__ import annotations

import numpy as np
import pytest

from hasten.device import Device
from hasten.diagnose.decoding import STEPS, observe_step, rated, reading
from hasten.diagnose.profile import Observation, build
from hasten.measurement import Figure
from hasten.recipe import Recipe
from hasten.runner.generate import GenerateSettings, Generator
from hasten.runtimes import OperatorTime


class Counted:
    """Gives the same logits to whatever it is fed, and counts."""

    def __init__(self) -> None:
        self.fed: list[int] = []

    def begin(self) -> Counted:
        return self

    def reset(self) -> None:
        pass

    def feed(self, ids: np.ndarray, mask: np.ndarray, positions: np.ndarray, rows: int) -> np.ndarray:
        assert mask.shape[1] == positions[0, -1] + 1
        self.fed.append(ids.shape[1])
        return np.eye(1, 5, dtype=np.float32)[None].repeat(rows, axis=1)

    def operators(self, context: np.ndarray, repeats: int = 10) -> list[OperatorTime]:
        return [OperatorTime("up", "FullyConnectedCompressed", 3.0), OperatorTime("norm", "RMS", 1.0)]

    def close(self) -> None:
        pass


class Words:
    ends = frozenset[int]()

    def encode(self, text: str) -> np.ndarray:
        return np.arange(len(text))

    def decode(self, ids: np.ndarray) -> str:
        return " " * len(ids)


def test_a_step_is_one_token_after_a_typical_prompt() -> None:
    decoder = Counted()
    generator = Generator(lambda: decoder, GenerateSettings(new_tokens=9, lookup=2), Words())
    samples = [{"text": np.array("x" * length)} for length in (3, 30, 7)]
    found = Observation.from_json(observe_step(generator, samples))
    assert decoder.fed.count(7) >= 2, "the context of the steps is the median prompt"
    assert decoder.fed.count(1) == 2 * STEPS + 3 * 8, "drafts are left out"
    assert found.batch == 1
    assert 0 < found.session_us.value <= found.wall_us.value
    assert [time.name for time in found.times] == ["up", "norm"]
    profile = build(found, (), Recipe(), Device("d", "cpu", (0,), 1 << 30))
    assert [row.by for row in rated(profile.rows)] == ["memory", "unknown"]


def test_the_reading_of_the_weights_is_told_beside_the_step() -> None:
    limits = {"read_gb_s": Figure(50.0, "GB/s", "measured")}
    (said,) = reading(100e6, 8000.0, Device("d", "cpu", (0,), 1 << 30, limits=limits))
    assert "100 MB take 2 ms" in said
    assert "25% of what the step takes" in said
    assert reading(100e6, 8000.0, Device("d", "cpu", (0,), 1 << 30)) == ()


def test_a_step_needs_a_prompt() -> None:
    with pytest.raises(IndexError):
        Generator(Counted, GenerateSettings(), Words()).steps([], 1)
