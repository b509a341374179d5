"""A measurement: what a trial found, every figure with a unit, an interval and where it came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from hasten.recipe import Recipe

Status = Literal["ok", "rejected", "undecided", "failed"]

FIGURES = (
    "latency_ms.p50",
    "latency_ms.p90",
    "latency_ms.p99",
    "latency_ms.p999",
    "throughput_per_s",
    "tokens_per_s",
    "ttft_ms",
    "tpot_ms",
    "peak_memory_mb",
    "device_memory_mb",
    "size_mb",
    "energy_j_per_inference",
    "cost_per_million",
    "co2e_g_per_million",
    "cache_hit_rate",
    "similar_rate",
    "prefix_hit_rate",
)
"""The names that `Measurement.figures` uses; JSON nests them at the dot.

Rates are shares of one pass that begins with nothing remembered: of inputs that a response cache answered, of those
that it answered as it had a similar one, and of tokens of prompts that were not read again.
"""


@dataclass(frozen=True)
class Figure:
    """A number that says where it came from.

    `source` begins with "measured", "estimated" or "published" and, for the last two, names the model or the place
    after a colon. `ci95` is a 95% confidence interval in the same unit, or None where one makes no sense.
    """

    value: float
    unit: str
    source: str
    ci95: tuple[float, float] | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "value": self.value,
            "ci95": None if self.ci95 is None else list(self.ci95),
            "unit": self.unit,
            "source": self.source,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Figure:
        ci95 = data.get("ci95")
        return cls(data["value"], data["unit"], data["source"], None if ci95 is None else (ci95[0], ci95[1]))


@dataclass(frozen=True)
class Quality:
    """How good a variant is beside the baseline, on the same samples.

    `value` is the metric itself; `drop` is how much worse than the baseline (positive is worse, whatever the sign of
    the metric), in points for "pt" and in per cent of the baseline's value for "%"; `bound` is what it is at most with
    95% confidence (one-sided), which non-inferiority is judged by. `kind` is "labels" where the data has labels, else
    "fidelity" to the original model. `beside` is the baseline's own value on these samples.
    """

    metric: str
    value: Figure
    drop: Figure
    kind: Literal["labels", "fidelity"]
    samples: int
    bound: float | None = None
    beside: float | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "metric": self.metric,
            "value": self.value.to_json(),
            "drop": self.drop.to_json(),
            "bound": self.bound,
            "kind": self.kind,
            "samples": self.samples,
            "beside": self.beside,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Quality:
        return cls(
            data["metric"],
            Figure.from_json(data["value"]),
            Figure.from_json(data["drop"]),
            data["kind"],
            data["samples"],
            data.get("bound"),
            data.get("beside"),
        )


@dataclass(frozen=True)
class Measurement:
    """Figures by name (see `FIGURES`) and the quality, if it was taken."""

    figures: Mapping[str, Figure] = field(default_factory=dict)
    quality: Quality | None = None

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for name, figure in self.figures.items():
            head, _, tail = name.partition(".")
            if tail:
                data.setdefault(head, {})[tail] = figure.to_json()
            else:
                data[head] = figure.to_json()
        data["quality"] = None if self.quality is None else self.quality.to_json()
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Measurement:
        figures = {}
        for name in FIGURES:
            head, _, tail = name.partition(".")
            found = data.get(head)
            if found is not None and tail:
                found = found.get(tail)
            if found is not None:
                figures[name] = Figure.from_json(found)
        quality = data.get("quality")
        return cls(figures, None if quality is None else Quality.from_json(quality))


@dataclass(frozen=True)
class Trial:
    """One variant evaluated on one device.

    `id` is the recipe's short hash. `speedup` is the goal's improvement over the baseline (above 1 is better), from
    alternating rounds; `rounds` keeps the raw (baseline, variant) pairs it came from. `origin` says whether it is a
    baseline ("brought", "full-precision") or was proposed ("search").
    """

    id: str
    recipe: Recipe
    status: Status
    reason: str = ""
    measurement: Measurement = field(default_factory=Measurement)
    speedup: Figure | None = None
    rounds: tuple[tuple[float, float], ...] = ()
    seconds_spent: float = 0.0
    origin: Literal["brought", "full-precision", "search"] = "search"
    why: str = ""
    final: bool = False
    stderr: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "recipe": self.recipe.to_json(),
            "status": self.status,
            "reason": self.reason,
            **self.measurement.to_json(),
            "speedup": None if self.speedup is None else self.speedup.to_json(),
            "rounds": [list(pair) for pair in self.rounds],
            "seconds_spent": self.seconds_spent,
            "origin": self.origin,
            "why": self.why,
            "final": self.final,
            "stderr": self.stderr,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Trial:
        speedup = data.get("speedup")
        return cls(
            id=data["id"],
            recipe=Recipe.from_json(data["recipe"]),
            status=data["status"],
            reason=data.get("reason", ""),
            measurement=Measurement.from_json(data),
            speedup=None if speedup is None else Figure.from_json(speedup),
            rounds=tuple((pair[0], pair[1]) for pair in data.get("rounds", ())),
            seconds_spent=data.get("seconds_spent", 0.0),
            origin=data.get("origin", "search"),
            why=data.get("why", ""),
            final=data.get("final", False),
            stderr=data.get("stderr", ""),
        )
