"""Profiles a language model: one decoding step by operator, beside the time that reading its weights takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from hasten.device import Device
from hasten.diagnose.kinds import HEAVY
from hasten.diagnose.rows import OperatorRow
from hasten.measurement import Figure

if TYPE_CHECKING:
    from hasten.runner.generate import Generator

STEPS = 40
ANSWERS = 3


def observe_step(generator: Generator, samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The JSON of `diagnose.profile.Observation` for one token of one answer, in a worker.

    The wall time is that of a token in whole answers to the end; the session's that of the step alone.
    """
    from hasten.measure.intervals import percentile_interval

    most = max(generator.settings.new_tokens, 8)
    generator.to_the_end = True
    generator.settings = replace(generator.settings, lookup=0, batch=1, new_tokens=most)
    steps = generator.steps(samples, STEPS)
    whole: list[float] = []
    for sample in samples[:ANSWERS]:
        generator.run_one(sample)
        timing = generator.timings[0]
        whole += [(timing.whole_s - timing.first_s) / (timing.tokens - 1)] * (timing.tokens - 1)
    steps += generator.steps(samples, STEPS)  # half before the answers and half after: a drift meets both alike
    alone = percentile_interval([second * 1e6 for second in steps], 0.5)
    session = alone.figure("us", f"measured: median of {len(steps)} decoding steps")
    around = sorted(whole)[len(whole) // 2] * 1e6
    wall = Figure(max(around, session.value), "us", f"measured: a token in {ANSWERS} whole answers")
    return {
        "times": [asdict(each) for each in generator.operators(samples)],
        "wall_us": wall.to_json(),
        "session_us": session.to_json(),
        "batch": 1,
        "shapes": {},
    }


def rated(rows: Sequence[OperatorRow]) -> tuple[OperatorRow, ...]:
    """The rows, with products told to be bound by memory: for one token each weight is read once and used once."""
    return tuple(replace(row, by="memory") if row.kind.startswith(tuple(HEAVY)) else row for row in rows)


def reading(size_bytes: float, step_us: float, device: Device) -> tuple[str, ...]:
    """How near one token comes to the least time in which this device can read the model's weights."""
    limit = device.limits.get("read_gb_s")
    if limit is None:
        return ()
    least_us = size_bytes / limit.value / 1e3
    return (
        f"each token reads the weights once: {size_bytes / 1e6:.0f} MB take {least_us / 1e3:.3g} ms at the "
        f"{limit.value:.0f} GB/s that this device reads (measured), {least_us / step_us:.0%} of what the step takes; "
        "the rest goes to starting operators, to waiting for threads, and to what else runs on the cores",
    )
