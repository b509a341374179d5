import json
from pathlib import Path

import numpy as np
import pytest

from hasten.data import SampleSet
from hasten.errors import Failed, InvalidInput
from hasten.formats import inspect
from hasten.isolate import run
from hasten.measure import loadgen
from hasten.measure.loadgen import Load, Warmed, drive
from hasten.measure.mlperf import SAMPLES_PER_QUERY, LoadTest, Subject, run_test
from hasten.measure.mlperf_log import read_latencies_ms, read_verdict
from hasten.measure.statistics import Interval


class FakeRunner:
    """Answers at once and remembers how many samples came together; fails from a given call on."""

    def __init__(self, fails_from: int | None = None) -> None:
        self.sizes: list[int] = []
        self.warmed = 0
        self.fails_from = fails_from

    def run(self, samples):
        if self.fails_from is not None and len(self.sizes) >= self.fails_from:
            raise RuntimeError("the runtime gave up")
        self.sizes.append(len(samples))
        total = sum(float(sample["x"].sum()) for sample in samples for _ in range(20))
        return [{"y": sample["x"] + 0 * total} for sample in samples]

    def run_one(self, sample):
        return self.run([sample])[0]

    def warm(self, samples) -> None:
        self.warmed += 1


SAMPLES = [{"x": np.full(4, i, np.float32)} for i in range(12)]


@pytest.mark.parametrize("scenario", loadgen.SCENARIOS)
def test_every_scenario_gives_figures_and_loadgens_verdict(scenario: str) -> None:
    runner = FakeRunner()
    subject = Subject(runner, SAMPLES, rows=2)
    load = drive(subject, scenario, 0.1, target_qps=200.0, latency_bound_ms=1000.0, seed=3)
    assert runner.warmed == 1
    assert load.throughput.value > 0
    assert load.throughput.low <= load.throughput.value <= load.throughput.high
    answer = json.loads(json.dumps(load.to_json()))
    assert answer["scenario"] == scenario
    assert isinstance(answer["valid"], bool)
    if scenario == "offline":
        assert answer["latency_ms"] == {}
        assert answer["queries"] == 1
        assert answer["count"] > 0
    else:
        assert len(load.latencies_ms) == load.queries
        assert list(answer["latency_ms"]) == ["p50", "p90", "p99", "p999"]
        values = [each["value"] for each in answer["latency_ms"].values()]
        assert values == sorted(values)
        assert values[-1] <= max(load.latencies_ms)  # outliers are kept


def test_single_stream_asks_for_one_sample_and_multi_stream_for_eight() -> None:
    for scenario, size in (("single-stream", 1), ("multi-stream", SAMPLES_PER_QUERY)):
        runner = FakeRunner()
        load = drive(Subject(runner, SAMPLES), scenario, 0.05)
        assert set(runner.sizes) == {size}
        assert load.samples == load.queries * size


def test_offline_hands_over_large_chunks() -> None:
    runner = FakeRunner()
    subject = Subject(runner, SAMPLES, rows=32, streams=2)
    outcome = run_test(subject, LoadTest("offline", 0.01, 0.01, 1e-5))
    assert max(runner.sizes) <= subject.chunk == 1024
    assert sum(runner.sizes) == sum(count for count, _ in outcome.chunks)


def test_a_server_gathers_no_more_than_a_batch_and_answers_every_query() -> None:
    runner = FakeRunner()
    outcome = run_test(Subject(runner, SAMPLES, rows=4, streams=2), LoadTest("server", 0.1, 1e-3, 1e-3, 500.0, 100.0))
    assert max(runner.sizes) <= 4
    assert sum(runner.sizes) == len(outcome.latencies_ms) == outcome.verdict.queries


def test_a_short_run_is_told_how_many_queries_a_claim_needs() -> None:
    load = drive(Subject(FakeRunner(), SAMPLES), "server", 0.1, target_qps=100.0, latency_bound_ms=1000.0)
    assert not load.valid
    assert any("more queries" in note or "queries for early stopping" in note for note in load.notes)


def test_a_servers_rate_is_searched_when_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loadgen, "PROBES", 2)
    load = drive(Subject(FakeRunner(), SAMPLES), "server", 0.1, latency_bound_ms=1000.0)
    assert load.target_qps is not None
    assert load.target_qps > 0
    assert any("highest rate found" in note for note in load.notes)


def test_the_rate_found_is_the_highest_that_the_bound_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(subject: Subject, test: LoadTest):
        late = test.target_qps > 300
        return type("Outcome", (), {"latencies_ms": [50.0 if late else 5.0] * 10})()

    monkeypatch.setattr(loadgen, "run_test", fake)
    rate = loadgen.find_rate(Subject(FakeRunner(), SAMPLES), LoadTest("server", 10, 1e-3, 1e-3, bound_ms=10.0))
    assert 280 < rate <= 300


def test_a_runner_that_fails_under_load_is_a_failed_job_and_not_a_dead_process() -> None:
    subject = Subject(FakeRunner(fails_from=3), SAMPLES)
    for scenario in ("single-stream", "server", "offline"):
        subject.runner.sizes.clear()
        with pytest.raises(Failed, match="RuntimeError: the runtime gave up"):
            run_test(subject, LoadTest(scenario, 0.05, 1e-3, 1e-5, 200.0, 100.0))


@pytest.mark.parametrize(
    ("scenario", "options", "said"),
    [
        ("train", {}, "no scenario 'train'"),
        ("offline", {"seconds": 0.0}, "duration must be positive"),
        ("server", {"target_qps": -1.0}, "rate must be positive"),
        ("server", {"latency_bound_ms": 0.0}, "latency bound must be positive"),
    ],
)
def test_nonsense_is_refused(scenario: str, options: dict[str, float], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        drive(Subject(FakeRunner(), SAMPLES), scenario, **({"seconds": 0.1} | options))
    with pytest.raises(InvalidInput, match="no sample"):
        drive(Subject(FakeRunner(), []), "offline", 0.1)


def test_a_rate_that_cannot_be_recorded_is_refused() -> None:
    with pytest.raises(Failed, match="more than can be recorded"):
        run_test(Subject(FakeRunner(), SAMPLES), LoadTest("server", 100.0, 1e-3, 1e-3, 1e6))


def test_percentiles_are_of_every_query_though_few_are_returned() -> None:
    latencies = [float(i) for i in range(1, 50_001)]
    load = Load(
        "single-stream", latencies, 50_000, 50_000, 1.0, Interval(1, 1, 1), True, (), Warmed(0, True, 1, 1), False
    )
    answer = load.to_json()
    assert len(answer["latencies_ms"]) <= loadgen.LATENCIES_RETURNED
    assert answer["latency_ms"]["p999"]["value"] == 49_950.0
    assert answer["latency_ms"]["p50"]["value"] == 25_000.0


def test_a_query_of_several_samples_ends_with_its_last(tmp_path: Path) -> None:
    def line(query: int, nanoseconds: int) -> str:
        args = f'"sample_seq":0,"query_seq":{query},"complete_ns":{nanoseconds}'
        return f'{{"name":"Sample","cat":"default","ph":"b","pid":1,"id":0,"ts":1,"args":{{{args}}}}},\n'

    lines = line(1, 3_000_000) + line(0, 1_000_000) + line(0, 2_000_000)
    (tmp_path / "mlperf_log_trace.json").write_text('{"traceEvents":[\n' + lines)
    assert read_latencies_ms(tmp_path) == [2.0, 3.0]


def test_a_log_without_a_result_is_a_failed_run(tmp_path: Path) -> None:
    with pytest.raises(Failed, match="no log"):
        read_verdict(tmp_path)
    (tmp_path / "mlperf_log_detail.txt").write_text(':::MLLOG {"key": "sut_name", "value": "x"}\n:::MLLOG {"cut\n')
    with pytest.raises(Failed, match="cut short"):
        read_verdict(tmp_path)


@pytest.fixture
def payload(tmp_path: Path) -> dict[str, object]:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weights = numpy_helper.from_array(np.ones((4, 3), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3])],
        [weights],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, tmp_path / "tiny.onnx")
    found = inspect(tmp_path / "tiny.onnx").to_json()
    samples = SampleSet.write(tmp_path / "samples", SAMPLES, None)
    return {
        "variant": {"parts": {"main": found}, "program": "single"},
        "recipe": {"runtime": {"name": "onnxruntime", "threads": 1}, "runner": {"batch": 4}},
        "signature": found["signature"],
        "padding": None,
        "samples": str(samples.path),
        "indices": [3, 1, 4],
        "scenario": "single-stream",
        "seconds": 0.1,
        "seed": 0,
    }


def test_a_real_model_is_benched_in_a_worker(payload: dict[str, object]) -> None:
    answer = run("hasten.measure.loadgen:bench", payload)
    assert answer["queries"] == len(answer["latencies_ms"]) > 0
    assert answer["peak_memory_bytes"] > 1 << 20
    assert answer["load_s"] > 0
    assert answer["joules"] > 0
    assert answer["energy_source"].partition(":")[0] in ("measured", "estimated")
    assert not any("cache" in note for note in answer["notes"])


def test_the_response_cache_is_left_out_and_said_so(payload: dict[str, object]) -> None:
    recipe = payload["recipe"] | {"cache": {"kind": "identity", "entries": 10}}  # type: ignore[operator]
    answer = run("hasten.measure.loadgen:bench", payload | {"recipe": recipe, "scenario": "offline"})
    assert any("response cache is off" in note for note in answer["notes"])
    assert answer["count"] > 0
