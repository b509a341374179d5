"""A goal: what to optimise and the constraints that must hold."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from hasten.errors import InvalidInput

Optimise = Literal["latency", "throughput", "p99", "memory", "size", "energy", "cost"]

FIGURE_OF: Mapping[str, str] = {
    "latency": "latency_ms.p50",
    "p50": "latency_ms.p50",
    "p90": "latency_ms.p90",
    "p99": "latency_ms.p99",
    "p999": "latency_ms.p999",
    "throughput": "throughput_per_s",
    "memory": "peak_memory_mb",
    "vram": "device_memory_mb",
    "size": "size_mb",
    "energy": "energy_j_per_inference",
    "cost": "cost_per_million",
    "carbon": "co2e_g_per_million",
}
"""The figure of a measurement that each word means, in goals and in `--where`."""

OPTIMISE = ("latency", "throughput", "p99", "memory", "size", "energy", "cost")
HIGHER_IS_BETTER = frozenset({"throughput_per_s"})

_UNITS = {
    "latency_ms": {"us": 1e-3, "ms": 1.0, "s": 1e3, "": 1.0},
    "throughput_per_s": {"/s": 1.0, "per_s": 1.0, "": 1.0},
    "peak_memory_mb": {"kb": 1e-3, "mb": 1.0, "gb": 1e3, "": 1.0},
    "device_memory_mb": {"kb": 1e-3, "mb": 1.0, "gb": 1e3, "": 1.0},
    "size_mb": {"kb": 1e-3, "mb": 1.0, "gb": 1e3, "": 1.0},
    "energy_j_per_inference": {"mj": 1e-3, "j": 1.0, "": 1.0},
    "cost_per_million": {"": 1.0, "usd": 1.0, "$": 1.0},
    "co2e_g_per_million": {"g": 1.0, "kg": 1e3, "": 1.0},
}


@dataclass(frozen=True)
class Drop:
    """How much quality may be lost: `amount` points ("pt", absolute) or per cent of the baseline's value ("%")."""

    amount: float
    unit: Literal["pt", "%"]

    @classmethod
    def parse(cls, text: str) -> Drop:
        match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*(pt|%)\s*", text)
        if not match:
            raise InvalidInput(f"cannot read the drop {text!r}", "write it as 0.5pt (absolute) or 1% (relative)")
        return cls(float(match[1]), "pt" if match[2] == "pt" else "%")

    def __str__(self) -> str:
        return f"{self.amount:g}{self.unit}"


@dataclass(frozen=True)
class Constraint:
    """A bound on one figure, in that figure's own unit."""

    figure: str
    op: Literal["<", "<=", ">", ">="]
    bound: float
    text: str

    @classmethod
    def parse(cls, text: str) -> Constraint:
        match = re.fullmatch(r"\s*([a-z0-9]+)\s*(<=|>=|<|>)\s*([0-9]*\.?[0-9]+)\s*([a-zA-Z/_$]*)\s*", text)
        if not match or match[1] not in FIGURE_OF:
            names = ", ".join(FIGURE_OF)
            raise InvalidInput(f"cannot read the constraint {text!r}", f"write it as 'p99<20ms'; figures: {names}")
        figure = FIGURE_OF[match[1]]
        units = _UNITS[figure.partition(".")[0]]
        if match[4].lower() not in units:
            known = ", ".join(unit for unit in units if unit)
            raise InvalidInput(f"unknown unit {match[4]!r} in {text!r}", f"use one of: {known}")
        op: Any = match[2]
        return cls(figure, op, float(match[3]) * units[match[4].lower()], text.strip())

    def holds(self, value: float) -> bool:
        return {
            "<": value < self.bound,
            "<=": value <= self.bound,
            ">": value > self.bound,
            ">=": value >= self.bound,
        }[self.op]


@dataclass(frozen=True)
class Goal:
    """What to optimise, how much quality may be lost, which constraints hold, and the time to spend."""

    optimise: Optimise = "throughput"
    max_drop: Drop = Drop(1.0, "%")
    where: tuple[Constraint, ...] = ()
    budget_s: float = 300.0

    @property
    def figure(self) -> str:
        return FIGURE_OF[self.optimise]

    @property
    def higher_is_better(self) -> bool:
        return self.figure in HIGHER_IS_BETTER

    @property
    def scenario(self) -> str:
        """The scenario that the goal is about, unless the user names one."""
        return "single-stream" if self.optimise in ("latency", "p99") else "offline"

    def ratio(self, baseline: float, variant: float) -> float:
        """The improvement of the goal's figure: above 1 is better."""
        if self.figure in HIGHER_IS_BETTER:
            return variant / baseline
        return baseline / variant

    def to_json(self) -> dict[str, Any]:
        return {
            "optimise": self.optimise,
            "max_drop": str(self.max_drop),
            "where": [c.text for c in self.where],
            "budget_s": self.budget_s,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Goal:
        return cls.parse(data["optimise"], data["max_drop"], data["where"], data["budget_s"])

    @classmethod
    def parse(
        cls, optimise: str, max_drop: str = "1%", where: tuple[str, ...] | list[str] = (), budget_s: float = 300.0
    ) -> Goal:
        if optimise not in OPTIMISE:
            raise InvalidInput(f"unknown goal {optimise!r}", f"use one of: {', '.join(OPTIMISE)}")
        if budget_s <= 0:
            raise InvalidInput("the budget must be positive", "write it as 300s, 5m or 1h")
        name: Any = optimise
        return cls(name, Drop.parse(max_drop), tuple(Constraint.parse(w) for w in where), budget_s)


def parse_seconds(text: str) -> float:
    """Read a duration such as 90s, 5m or 1h into seconds."""
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*(s|m|h|)\s*", text)
    if not match:
        raise InvalidInput(f"cannot read the duration {text!r}", "write it as 90s, 5m or 1h")
    return float(match[1]) * {"s": 1, "": 1, "m": 60, "h": 3600}[match[2]]


def parse_bytes(text: str) -> int:
    """Read a size such as 512MB or 10GB into bytes (powers of ten)."""
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([kmgt]?)b?\s*", text.lower())
    if not match:
        raise InvalidInput(f"cannot read the size {text!r}", "write it as 512MB or 10GB")
    return int(float(match[1]) * {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}[match[2]])
