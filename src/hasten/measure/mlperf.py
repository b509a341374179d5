"""Runs one LoadGen test against a runner: its callbacks, its settings and what came out."""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

from hasten.errors import Failed
from hasten.measure.mlperf_log import Verdict, read_latencies_ms, read_verdict

if TYPE_CHECKING:
    import numpy as np

    Sample = Mapping[str, np.ndarray]

SAMPLES_PER_QUERY = 8
"""Multi-stream's samples in a query (MLPerf Inference rules, from v2.0 on)."""

CHUNK_SAMPLES = 256
"""Offline hands the runner this many samples at a time or more, so that outputs do not pile up in memory."""

TRACED_QUERIES = 200_000
"""LoadGen's trace takes about 1 kB a query; longer runs are timed by hasten's own clock around each query."""


class Drivable(Protocol):
    """What LoadGen needs of a runner."""

    def run(self, samples: Sequence[Sample]) -> list[dict[str, np.ndarray]]: ...
    def run_one(self, sample: Sample) -> dict[str, np.ndarray]: ...
    def warm(self, samples: Sequence[Sample]) -> None: ...


@dataclass(frozen=True)
class Subject:
    """What is driven: `rows` is the runner's batch size and `streams` how many batches it runs at once."""

    runner: Drivable
    samples: Sequence[Sample]
    rows: int = 1
    streams: int = 1
    clock: Callable[[], float] = time.perf_counter

    @property
    def chunk(self) -> int:
        """How many samples offline hands over at a time: enough to sort and to keep every stream busy."""
        return max(CHUNK_SAMPLES, 16 * self.rows * self.streams)


@dataclass(frozen=True)
class LoadTest:
    """What LoadGen is asked for. The expected times only tell it how many queries to prepare."""

    scenario: str
    seconds: float
    seconds_per_query: float
    seconds_per_sample: float
    target_qps: float = 1.0
    bound_ms: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class Outcome:
    """`latencies_ms` of every query in order (none in offline); `chunks` are (samples, seconds) of offline."""

    verdict: Verdict
    latencies_ms: list[float]
    chunks: list[tuple[int, float]]
    seconds: float


def run_test(subject: Subject, test: LoadTest) -> Outcome:
    """Run one test. Raises `Failed` where the runner failed, with its first error."""
    import mlperf_loadgen as lg

    calls = _Callbacks(lg, subject)
    server = test.scenario == "server"
    expected = test.seconds * test.target_qps if server else test.seconds / test.seconds_per_query
    if server and expected > TRACED_QUERIES:
        raise Failed(f"{expected:.0f} queries are more than can be recorded", "bench for less time or at a lower rate")
    traced = test.scenario != "offline" and expected <= TRACED_QUERIES
    issue: Mapping[str, Callable[[list[Any]], None]] = {
        "single-stream": calls.one,
        "multi-stream": calls.several,
        "server": calls.waiting.put,
        "offline": calls.everything,
    }
    threads = [threading.Thread(target=calls.serve, daemon=True) for _ in range(subject.streams if server else 0)]
    for thread in threads:
        thread.start()
    with tempfile.TemporaryDirectory(prefix="hasten-loadgen-") as folder:
        output, log = lg.LogOutputSettings(), lg.LogSettings()
        output.outdir, output.copy_summary_to_stdout = folder, False
        log.log_output, log.enable_trace = output, traced
        sut = lg.ConstructSUT(issue[test.scenario], _nothing)
        library = lg.ConstructQSL(len(subject.samples), len(subject.samples), _nothing, _nothing)
        start = subject.clock()
        try:
            lg.StartTestWithLogSettings(sut, library, _settings(lg, test), log, "")
        finally:
            seconds = subject.clock() - start
            for _ in threads:
                calls.waiting.put(None)
            for thread in threads:
                thread.join()
            lg.DestroyQSL(library)
            lg.DestroySUT(sut)
        if calls.errors:
            first = calls.errors[0]
            raise Failed(f"the runner failed under load: {type(first).__name__}: {first}") from first
        latencies = read_latencies_ms(Path(folder)) if traced else calls.latencies_ms
        return Outcome(read_verdict(Path(folder)), latencies, calls.chunks, seconds)


@dataclass
class _Callbacks:
    """What LoadGen calls, what was seen in it, and what went wrong there."""

    lg: Any
    subject: Subject
    latencies_ms: list[float] = field(default_factory=list)
    chunks: list[tuple[int, float]] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)
    waiting: SimpleQueue[list[Any] | None] = field(default_factory=SimpleQueue)

    def one(self, queries: list[Any]) -> None:
        start = self.subject.clock()
        with self._kept():
            self.subject.runner.run_one(self.subject.samples[queries[0].index])
        self.latencies_ms.append((self.subject.clock() - start) * 1e3)
        self.complete(queries)

    def several(self, queries: list[Any]) -> None:
        start = self.subject.clock()
        self.run(queries)
        self.latencies_ms.append((self.subject.clock() - start) * 1e3)
        self.complete(queries)

    def everything(self, queries: list[Any]) -> None:
        for first in range(0, len(queries), self.subject.chunk):
            chunk = queries[first : first + self.subject.chunk]
            start = self.subject.clock()
            self.run(chunk)
            self.chunks.append((len(chunk), self.subject.clock() - start))
            self.complete(chunk)

    def serve(self) -> None:
        """A server's thread: take what waits, up to a batch, and run it."""
        while (queries := self.waiting.get()) is not None:
            while len(queries) < self.subject.rows:
                try:
                    more = self.waiting.get_nowait()
                except Empty:
                    break
                if more is None:
                    self.waiting.put(None)
                    break
                queries = queries + more
            self.run(queries)
            self.complete(queries)

    def run(self, queries: Sequence[Any]) -> None:
        with self._kept():
            self.subject.runner.run([self.subject.samples[query.index] for query in queries])

    def complete(self, queries: Sequence[Any]) -> None:
        self.lg.QuerySamplesComplete([self.lg.QuerySampleResponse(query.id, 0, 0) for query in queries])

    @contextlib.contextmanager
    def _kept(self) -> Iterator[None]:
        """Keep an error for later: one that left a callback would end the process inside LoadGen.

        After the first, every query waits a little, or LoadGen would fill its log with queries that cost nothing.
        """
        if self.errors:
            time.sleep(0.02)
        try:
            yield
        except Exception as error:
            self.errors.append(error)


def _settings(lg: Any, test: LoadTest) -> Any:
    """LoadGen's settings. How many queries a claim needs is left to its early stopping, which says so in its notes."""
    settings = lg.TestSettings()
    settings.mode = lg.TestMode.PerformanceOnly
    settings.min_duration_ms = max(1, round(test.seconds * 1e3))
    settings.min_query_count = 1
    settings.qsl_rng_seed, settings.sample_index_rng_seed = test.seed + 1, test.seed + 2
    settings.schedule_rng_seed = test.seed + 3
    query_ns = max(1, round(test.seconds_per_query * 1e9))
    if test.scenario == "single-stream":
        settings.scenario = lg.TestScenario.SingleStream
        settings.single_stream_expected_latency_ns = query_ns
    elif test.scenario == "multi-stream":
        settings.scenario = lg.TestScenario.MultiStream
        settings.multi_stream_samples_per_query = SAMPLES_PER_QUERY
        settings.multi_stream_expected_latency_ns = query_ns
    elif test.scenario == "server":
        settings.scenario = lg.TestScenario.Server
        settings.server_target_qps = test.target_qps
        settings.server_target_latency_ns = max(1, round(test.bound_ms * 1e6))
    else:
        settings.scenario = lg.TestScenario.Offline
        settings.offline_expected_qps = 1 / test.seconds_per_sample
    return settings


def _nothing(*_: Any) -> None:
    """LoadGen's other callbacks: samples are in memory already, and nothing is held back to flush."""
