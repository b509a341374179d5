"""Compares two subjects fairly: alternating rounds in separate workers, the ratio with its interval, and quality."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from hasten.events import Event, OnEvent, ignore
from hasten.lab.trial import LocalLab, as_quality
from hasten.measurement import Figure, Measurement, Quality
from hasten.recipe import Recipe
from hasten.variant import Variant

SCHEMA = "hasten.comparison/1"


@dataclass(frozen=True)
class Subject:
    """One side of a comparison: what it is called, its recipe and its variant."""

    name: str
    recipe: Recipe
    variant: Variant


@dataclass(frozen=True)
class Comparison:
    """`ratio` above 1 means that B is better in `figure` than A; quality is B's beside A's."""

    a: str
    b: str
    figure: str
    ratio: Figure
    rounds: tuple[tuple[float, float], ...]
    measurements: Mapping[str, Measurement]
    quality: Quality | None
    noisy: bool
    stopped: str
    notes: tuple[str, ...] = field(default=())

    def words(self) -> list[str]:
        name = self.figure.replace("_", " ").replace(".", " ")
        if self.ratio.ci95 is None:
            return [f"{self.ratio.value:.3f}x from one round, which shows nothing: give a larger budget", *self.notes]
        low, high = self.ratio.ci95
        if low > 1.0:
            verdict = f"{self.b} is better than {self.a} in {name}"
        elif high < 1.0:
            verdict = f"{self.a} is better than {self.b} in {name}"
        else:
            verdict = f"no difference in {name} is shown between {self.a} and {self.b}"
        lines = [
            f"{verdict}: {self.ratio.value:.3f}x, 95% interval {low:.3f} to {high:.3f} from {len(self.rounds)} rounds"
        ]
        if self.quality is not None:
            drop = self.quality.drop
            interval = "" if drop.ci95 is None else f" (interval {drop.ci95[0]:.3g} to {drop.ci95[1]:.3g})"
            lines.append(f"{self.quality.metric} of {self.b}: {drop.value:.3g} {drop.unit} below {self.a}{interval}")
        if self.noisy:
            lines.append("this machine is too noisy now to tell 5%: the rounds vary more than that by themselves")
        return [*lines, *self.notes]

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "a": self.a,
            "b": self.b,
            "figure": self.figure,
            "ratio": self.ratio.to_json(),
            "rounds": [list(pair) for pair in self.rounds],
            "measurements": {name: m.to_json() for name, m in self.measurements.items()},
            "quality": None if self.quality is None else self.quality.to_json(),
            "noisy": self.noisy,
            "stopped": self.stopped,
            "notes": list(self.notes),
        }


def compare(
    lab: LocalLab, a: Subject, b: Subject, budget_s: float, *, tolerance: float = 0.01, on_event: OnEvent = ignore
) -> Comparison:
    """Alternate rounds of A and B until the interval is narrow enough or the budget is spent, then compare outputs."""
    from hasten.lab.race import race

    with ExitStack() as stack:
        stations = lab.open_pair(stack, a.recipe, a.variant, b.recipe, b.variant)
        result = race(
            stations,
            ratio=lab.ratio,
            clock=lab.clock,
            budget_s=budget_s * 0.8,
            min_rounds=8,
            max_rounds=400,
            tolerance=tolerance,
            seed=lab.seed,
            on_round=lambda number: on_event(Event("round", f"round {number}", None)),
        )
        ratio = lab.settled(result.ratios.get("b"), stations[0], stations[1], result.errors.get("b"))
        quality = lab.quality_beside(stations[0], stations[1])
        measurements = {
            subject.name: Measurement(lab.figures(station)) for subject, station in zip((a, b), stations, strict=True)
        }
    return Comparison(
        a.name,
        b.name,
        lab.goal.figure,
        ratio,
        result.pairs("b"),
        measurements,
        None if quality is None else as_quality(quality),
        result.noisy,
        result.stopped or "",
    )
