"""Turns what was measured into the figures of a measurement, each with unit, interval and source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hasten.costs.carbon import co2e_g_per_million
from hasten.costs.energy import energy_of_cpu_time
from hasten.costs.price import cost_per_million
from hasten.costs.tariff import QUANTILES, Tariff
from hasten.measure.statistics import Interval, mean_interval, percentile_interval
from hasten.measurement import Figure

__all__ = ["Tariff", "summarise", "summarise_bench"]

MB = 1e6


def summarise(
    rounds: Sequence[Mapping[str, Any]],
    *,
    tariff: Tariff,
    peak_memory_bytes: int | None = None,
    size_bytes: int | None = None,
    device_memory_bytes: int | None = None,
    latencies_ms: Sequence[float] | None = None,
) -> dict[str, Figure]:
    """The figures of `hasten.measurement.FIGURES` from rounds of one variant.

    A round has seconds, cpu_seconds, count, and perhaps latencies_ms and joules (with energy_source) from a meter.
    `latencies_ms` replaces those of the rounds. Intervals are over rounds, of percentiles over queries; a single round
    has none. What was not taken is left out.
    """
    figures = _latencies(latencies_ms or [value for each in rounds for value in each.get("latencies_ms", ())])
    if rounds:
        time_each = mean_interval([each["seconds"] / each["count"] for each in rounds])
        joules = mean_interval([tariff.joules(each) / each["count"] for each in rounds])
        figures |= _rates(time_each, _energy(rounds, joules, tariff), tariff)
    answers = [answer for each in rounds for answer in each.get("answers", ())]
    if answers:
        figures |= _tokens(rounds, answers)
    return figures | _reused(rounds) | _sizes(peak_memory_bytes, size_bytes, device_memory_bytes)


def _reused(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Figure]:
    """Shares of what was used again; the last rounds count, which take as many samples as any."""
    found = {}
    for name, (used, whole) in (rounds[-1].get("reused") or {} if rounds else {}).items():
        if whole:
            source = "measured: one pass over the samples of a round, beginning with nothing remembered"
            found[name] = Figure(100 * used / whole, "%", source)
    return found


def _tokens(rounds: Sequence[Mapping[str, Any]], answers: Sequence[tuple[float, float, int]]) -> dict[str, Figure]:
    """Tokens a second in all, and the medians of the time to the first token and of the time for each further one.

    The two times are MLPerf's TTFT and TPOT; prompts that wait for others to be decoded wait in both.
    """
    rates = [sum(tokens for _, _, tokens in each["answers"]) / each["seconds"] for each in rounds if each["answers"]]
    further = [(whole - first) / (tokens - 1) * 1e3 for first, whole, tokens in answers if tokens > 1]
    found = {
        "tokens_per_s": mean_interval(rates).figure("/s"),
        "ttft_ms": percentile_interval([first * 1e3 for first, _, _ in answers], 0.5).figure("ms"),
    }
    return found | ({"tpot_ms": percentile_interval(further, 0.5).figure("ms")} if further else {})


def summarise_bench(answer: Mapping[str, Any], *, tariff: Tariff, size_bytes: int | None = None) -> dict[str, Figure]:
    """The figures of one `measure.loadgen:bench` run. Under server, cost is that of a device kept this busy."""
    found = {
        f"latency_ms.{name}": Figure(each["value"], "ms", "measured", _ends(each["ci95"]))
        for name, each in answer["latency_ms"].items()
    }
    rate, ends = answer["throughput"]["value"], _ends(answer["throughput"]["ci95"])
    time_each = Interval(1 / rate, 1 / ends[1], 1 / ends[0]) if ends else Interval(1 / rate, 0.0, float("inf"))
    energy = Figure(answer["joules"] / max(1, answer["count"]), "J", answer["energy_source"])
    if answer.get("answers"):
        found |= _tokens([{"answers": answer["answers"], "seconds": answer["seconds"]}], answer["answers"])
    return (
        found
        | _rates(time_each, energy, tariff)
        | _sizes(answer.get("peak_memory_bytes"), size_bytes, answer.get("device_memory_bytes"))
    )


def _latencies(values: Sequence[float]) -> dict[str, Figure]:
    if not values:
        return {}
    return {f"latency_ms.{name}": percentile_interval(values, q).figure("ms") for name, q in QUANTILES.items()}


def _rates(time_each: Interval, energy: Figure, tariff: Tariff) -> dict[str, Figure]:
    """Throughput, energy, cost and carbon from the device seconds and the joules of one inference."""
    bounded = time_each.ci95 is not None and time_each.low > 0
    ends = (1 / time_each.high, 1 / time_each.low) if bounded else None
    return {
        "throughput_per_s": Figure(1 / time_each.value, "/s", "measured", ends),
        "energy_j_per_inference": energy,
        "cost_per_million": cost_per_million(time_each.figure("s"), tariff.price_per_hour),
        "co2e_g_per_million": co2e_g_per_million(energy, tariff.g_per_kwh, tariff.pue),
    }


def _energy(rounds: Sequence[Mapping[str, Any]], joules: Interval, tariff: Tariff) -> Figure:
    metered = [each for each in rounds if each.get("joules") is not None]
    if len(metered) == len(rounds):
        return joules.figure("J", rounds[0].get("energy_source", "measured: an energy counter"))
    estimate = energy_of_cpu_time(1.0, tariff.watts_per_cpu).source
    return joules.figure("J", rounds[0].get("energy_source") or estimate)


def _sizes(peak_memory_bytes: int | None, size_bytes: int | None, device_memory_bytes: int | None) -> dict[str, Figure]:
    found = {}
    if device_memory_bytes:
        source = "measured: NVML, what the memory in use on the GPU grew by from before loading to after a round"
        found["device_memory_mb"] = Figure(device_memory_bytes / MB, "MB", source)
    if peak_memory_bytes:
        found["peak_memory_mb"] = Figure(peak_memory_bytes / MB, "MB", "measured: peak resident memory of the worker")
    if size_bytes:
        found["size_mb"] = Figure(size_bytes / MB, "MB", "measured: the model's files")
    return found


def _ends(ci95: Sequence[float] | None) -> tuple[float, float] | None:
    return None if ci95 is None else (ci95[0], ci95[1])
