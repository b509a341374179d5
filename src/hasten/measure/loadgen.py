"""Benches a variant under one of MLPerf's scenarios: warm-up until steady, server's rate, LoadGen, figures."""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

from hasten.errors import InvalidInput
from hasten.isolate import Scope
from hasten.measure import memory
from hasten.measure.device_memory import grown, used_bytes
from hasten.measure.energy import Meter, kind_of
from hasten.measure.mlperf import SAMPLES_PER_QUERY, LoadTest, Outcome, Subject, run_test
from hasten.measure.statistics import Interval, is_noisy, mean_interval, percentile_interval, steady
from hasten.model import Signature
from hasten.recipe import Recipe
from hasten.variant import Variant
from hasten.workload import Padding

SCENARIOS = ("single-stream", "multi-stream", "server", "offline")
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
BOUND_FACTOR = 10.0
"""Without a latency bound, server's is this many times the latency of one sample on the idle machine."""

PROBES = 6
LATENCIES_RETURNED = 10_000


@dataclass(frozen=True)
class Warmed:
    """What warming up found. `seconds_per_query` is of the scenario's own query, `seconds_per_sample` at full rate."""

    seconds: float
    steady: bool
    seconds_per_query: float
    seconds_per_sample: float


@dataclass(frozen=True)
class Load:
    """A finished run. `latencies_ms` has every query (none in offline, which is a single query); outliers are kept.

    `throughput` is in samples per second. `valid` is LoadGen's word, and `notes` say why and what else to know.
    """

    scenario: str
    latencies_ms: list[float]
    queries: int
    samples: int
    seconds: float
    throughput: Interval
    valid: bool
    notes: tuple[str, ...]
    warmed: Warmed
    noisy: bool
    target_qps: float | None = None
    latency_bound_ms: float | None = None

    def percentiles(self) -> dict[str, Interval]:
        """p50, p90, p99 and p999 in milliseconds; empty for offline."""
        if not self.latencies_ms:
            return {}
        return {name: percentile_interval(self.latencies_ms, q) for name, q in QUANTILES.items()}

    def to_json(self) -> dict[str, Any]:
        """Percentiles are of every query; `latencies_ms` is thinned evenly to `LATENCIES_RETURNED`."""
        every = max(1, math.ceil(len(self.latencies_ms) / LATENCIES_RETURNED))
        return {
            "scenario": self.scenario,
            "latencies_ms": self.latencies_ms[::every],
            "latency_ms": {name: _json(interval) for name, interval in self.percentiles().items()},
            "queries": self.queries,
            "count": self.samples,
            "seconds": self.seconds,
            "throughput": _json(self.throughput),
            "valid": self.valid,
            "notes": list(self.notes),
            "warm_s": self.warmed.seconds,
            "steady": self.warmed.steady,
            "noisy": self.noisy,
            "target_qps": self.target_qps,
            "latency_bound_ms": self.latency_bound_ms,
        }


def bench(payload: dict[str, Any], scope: Scope) -> dict[str, Any]:
    """Load a variant and run a scenario on it (a worker function).

    `payload`: variant, recipe, signature (of the source model), padding, samples (path), indices, scenario, seconds,
    seed, and for server target_qps and latency_bound_ms (or None). Returns `Load.to_json` with load_s, cpu_seconds,
    joules and energy_source of the run, peak_memory_bytes of this worker since it began to load, device_memory_bytes
    that it took on a GPU, and the answers of a language model (seconds to the first token, seconds in all, tokens). The
    response cache is left out: LoadGen repeats samples at random, and every repeat would be a hit.
    """
    from hasten.data import SampleSet
    from hasten.runner import Generator, open_runner

    known = SampleSet.open(Path(payload["samples"]))
    samples = [known[i] for i in payload["indices"]]
    recipe = Recipe.from_json(payload["recipe"])
    scope.progress(None, "loading")
    memory.reset_peak()
    before = used_bytes()
    start = time.perf_counter()
    runner = open_runner(
        Variant.from_json(payload["variant"]),
        Recipe(recipe.steps, recipe.runtime, recipe.runner),
        Signature.from_json(payload["signature"]),
        Padding.from_json(payload["padding"]),
    )
    if isinstance(runner, Generator):
        runner.to_the_end = True  # as in every measurement: the same work, whatever the model would say
    meter = Meter(kind_of(recipe))
    try:
        loaded = time.perf_counter()
        load = drive(
            Subject(runner, samples, int(recipe.runner.get("batch", 1)), int(recipe.runtime.get("streams") or 1)),
            payload["scenario"],
            float(payload["seconds"]),
            target_qps=payload.get("target_qps"),
            latency_bound_ms=payload.get("latency_bound_ms"),
            seed=int(payload.get("seed", 0)),
            meter=meter,
            on_progress=lambda text: scope.progress(None, text),
        )
        peak, on_device = memory.peak_bytes(), grown(before)
        history = list(runner.history)[-load.samples :] if isinstance(runner, Generator) else []
    finally:
        runner.close()
    if recipe.cache:
        load = replace(load, notes=("the response cache is off: repeats would all be hits", *load.notes))
    return load.to_json() | {
        "load_s": loaded - start,
        "cpu_seconds": meter.cpu_seconds,
        "joules": meter.energy.value,
        "energy_source": meter.energy.source,
        "peak_memory_bytes": peak,
        "device_memory_bytes": on_device,
        "answers": [astuple(each) for each in history],
    }


def drive(
    subject: Subject,
    scenario: str,
    seconds: float,
    *,
    target_qps: float | None = None,
    latency_bound_ms: float | None = None,
    seed: int = 0,
    meter: contextlib.AbstractContextManager[Any] | None = None,
    on_progress: Callable[[str], None] = lambda text: None,
) -> Load:
    """Warm up until steady, then run `scenario` for about `seconds`, inside `meter`.

    `target_qps` is server's rate of arrivals; without it the highest rate is searched for at which 99% of the queries
    stay within `latency_bound_ms`. Raises `Failed` where the runner failed, naming its first error.
    """
    if scenario not in SCENARIOS:
        raise InvalidInput(f"there is no scenario {scenario!r} to bench", f"use one of: {', '.join(SCENARIOS)}")
    if not subject.samples:
        raise InvalidInput("there is no sample to run", "give at least one sample")
    for value, what in ((seconds, "the duration"), (target_qps, "the rate"), (latency_bound_ms, "the latency bound")):
        if value is not None and not value > 0:
            raise InvalidInput(f"{what} must be positive, not {value:g}")
    on_progress("warming up")
    warmed = warm_up(subject, scenario, max(0.5, 0.25 * seconds))
    notes = [] if warmed.steady else [f"the warm-up had not settled after {warmed.seconds:.1f} s"]
    test = LoadTest(scenario, seconds, warmed.seconds_per_query, warmed.seconds_per_sample, seed=seed)
    if scenario == "server":
        if latency_bound_ms is None:
            latency_bound_ms = BOUND_FACTOR * warmed.seconds_per_query * 1e3
            notes.append(
                f"latency bound {latency_bound_ms:.3g} ms: {BOUND_FACTOR:g} times one sample's (none was given)"
            )
        test = replace(test, bound_ms=latency_bound_ms)
        if target_qps is None:
            on_progress("searching for the rate that the latency bound allows")
            target_qps = find_rate(subject, test)
            notes.append(f"{target_qps:.4g} queries/s is the highest rate found within the latency bound")
        test = replace(test, target_qps=float(target_qps))
    on_progress(f"running {scenario}")
    with meter or contextlib.nullcontext():
        outcome = run_test(subject, test)
    samples = outcome.verdict.queries * (SAMPLES_PER_QUERY if scenario == "multi-stream" else 1)
    if scenario == "offline":
        samples = sum(size for size, _ in outcome.chunks)
    throughput, noisy = _throughput(scenario, outcome)
    if noisy:
        notes.append("this machine was too noisy to tell a difference of 5%")
    return Load(
        scenario,
        outcome.latencies_ms,
        outcome.verdict.queries,
        samples,
        outcome.seconds,
        throughput,
        outcome.verdict.valid,
        (*notes, *outcome.verdict.notes),
        warmed,
        noisy,
        target_qps if scenario == "server" else None,
        latency_bound_ms if scenario == "server" else None,
    )


def warm_up(subject: Subject, scenario: str, budget_s: float) -> Warmed:
    """Run the scenario's own query until its time has settled or the budget is spent; for server a full run as well."""
    runner, samples, clock = subject.runner, subject.samples, subject.clock
    started = clock()
    runner.warm(samples)
    full = [samples[i % len(samples)] for i in range(min(len(samples), subject.chunk))]
    few = [samples[i % len(samples)] for i in range(SAMPLES_PER_QUERY)]

    def query(number: int) -> None:
        if scenario in ("multi-stream", "offline"):
            runner.run(few if scenario == "multi-stream" else full)
        else:
            runner.run_one(samples[number % len(samples)])

    times: list[float] = []
    settled: int | None = None
    look = 8
    for i in itertools.count():
        start = clock()
        query(i)
        times.append(clock() - start)
        if len(times) == look:  # looking costs time too, so less and less often
            settled, look = steady(times), look * 3 // 2
        if settled is not None or clock() - started > budget_s:
            break
    usual = _median(times[settled or len(times) // 2 :])
    each = {"offline": usual / len(full), "multi-stream": usual / SAMPLES_PER_QUERY}.get(scenario, usual)
    if scenario == "server":
        start = clock()
        runner.run(full)
        each = (clock() - start) / len(full)
    return Warmed(clock() - started, settled is not None, max(usual, 1e-9), max(each, 1e-9))


def find_rate(subject: Subject, test: LoadTest) -> float:
    """The highest rate at which 99% of the queries end within `test.bound_ms`: bisection below the offline rate.

    Each of `PROBES` tests is short, so the rate found is good to some per cent; the full run then says what holds.
    """
    low, high = 0.0, 1 / test.seconds_per_sample
    seconds = min(2.0, test.seconds / 4)
    rate = 0.7 * high
    for probe in range(PROBES):
        outcome = run_test(subject, replace(test, seconds=seconds, target_qps=rate, seed=test.seed + 10 * (probe + 1)))
        within = percentile_interval(outcome.latencies_ms, 0.99).value <= test.bound_ms
        low, high = (rate, high) if within else (low, rate)
        rate = (low + high) / 2
    return low or high


def _throughput(scenario: str, outcome: Outcome) -> tuple[Interval, bool]:
    """Samples per second with its interval, and whether noise would hide a difference of 5%."""
    if scenario == "server":  # the schedule sets the rate of arrivals: its noise says nothing of the runner
        rate = outcome.verdict.detail.get("result_completed_samples_per_sec", outcome.verdict.queries / outcome.seconds)
        return Interval(float(rate), -math.inf, math.inf), False
    if scenario == "offline":
        size = outcome.chunks[0][0]
        full = [seconds for count, seconds in outcome.chunks if count == size]
        rate = sum(count for count, _ in outcome.chunks) / sum(seconds for _, seconds in outcome.chunks)
        return _inverted(mean_interval(full), size, rate), is_noisy(full)
    samples = SAMPLES_PER_QUERY if scenario == "multi-stream" else 1
    mean = mean_interval(outcome.latencies_ms)
    return _inverted(mean, samples * 1e3, samples * 1e3 / mean.value), is_noisy(outcome.latencies_ms)


def _inverted(mean: Interval, factor: float, rate: float) -> Interval:
    """The rate that belongs to a mean time: unbounded above where the time is not bounded from 0."""
    return Interval(rate, min(rate, factor / mean.high), max(rate, factor / mean.low) if mean.low > 0 else math.inf)


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def _json(interval: Interval) -> dict[str, Any]:
    return {"value": interval.value, "ci95": None if interval.ci95 is None else list(interval.ci95)}
