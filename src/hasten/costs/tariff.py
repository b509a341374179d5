"""A tariff: what a second of this device costs in joules, money and carbon, so that a round becomes a figure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hasten.costs.carbon import PUE, co2e_g_per_million, grid_intensity
from hasten.costs.energy import watts_per_cpu
from hasten.costs.price import cost_per_million, price_per_hour
from hasten.measurement import Figure

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}


@dataclass(frozen=True)
class Tariff:
    """Rates with their sources.

    `watts_per_cpu` is what one busy logical CPU draws, `price_per_hour` the price of the whole device in US dollars,
    `g_per_kwh` the grid's carbon intensity, `pue` the data centre's power usage effectiveness.
    """

    watts_per_cpu: Figure
    price_per_hour: Figure
    g_per_kwh: Figure
    pue: float = PUE

    @classmethod
    def here(
        cls, processor: str, cpus: int, *, price: float | None = None, country: str | None = None, pue: float = PUE
    ) -> Tariff:
        """The rates of this machine's processor, from the user's own figures where given, else from the tables."""
        return cls(watts_per_cpu(), price_per_hour(processor, cpus, price), grid_intensity(country), pue)

    def joules(self, raw: Mapping[str, Any]) -> float:
        """Energy of a round: what a meter said, else CPU time times the power of a busy CPU."""
        metered = raw.get("joules")
        return float(metered) if metered is not None else float(raw["cpu_seconds"]) * self.watts_per_cpu.value

    def cost(self, seconds_per_inference: float) -> float:
        return cost_per_million(seconds_per_inference, self.price_per_hour).value

    def co2e(self, joules_per_inference: float) -> float:
        return co2e_g_per_million(joules_per_inference, self.g_per_kwh, self.pue).value

    def figure(self, name: str, raw: Mapping[str, Any]) -> float:
        """One figure of one round: `raw` has seconds, cpu_seconds, count and, in single-stream, latencies_ms.

        Memory and size are no matter of rounds: such goals judge their rounds by throughput.
        """
        if name.startswith("latency_ms."):
            ranked = sorted(raw["latencies_ms"])
            return float(ranked[min(len(ranked) - 1, int(QUANTILES[name.partition(".")[2]] * len(ranked)))])
        if name == "energy_j_per_inference":
            return self.joules(raw) / raw["count"]
        if name == "co2e_g_per_million":
            return self.co2e(self.joules(raw) / raw["count"])
        if name == "cost_per_million":
            return self.cost(raw["seconds"] / raw["count"])
        return float(raw["count"] / raw["seconds"])
