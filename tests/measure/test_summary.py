import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.goal import FIGURE_OF
from hasten.measure.summary import Tariff, summarise, summarise_bench
from hasten.measurement import FIGURES, Figure, Measurement

TARIFF = Tariff(
    Figure(10.0, "W", "published: a table"),
    Figure(3.6, "USD/h", "published: a price list"),
    Figure(360.0, "g/kWh", "published: a grid"),
    pue=1.5,
)


def a_round(seconds: float = 0.5, **more: object) -> dict[str, object]:
    return {"seconds": seconds, "cpu_seconds": 2 * seconds, "count": 100, **more}


def test_every_figure_of_a_measurement_has_a_unit_and_a_source() -> None:
    answers = [(0.1, 0.4, 4), (0.2, 0.6, 5)]
    reused = {"cache_hit_rate": [5, 20], "similar_rate": [2, 20], "prefix_hit_rate": [30, 120]}
    more = {"latencies_ms": [1.0, 2.0, 3.0], "answers": answers, "reused": reused}
    rounds = [a_round(0.4 + i / 50, **more) for i in range(10)]
    figures = summarise(rounds, tariff=TARIFF, peak_memory_bytes=5_000_000, size_bytes=3_000_000, device_memory_bytes=1)
    assert set(figures) == set(FIGURES)
    rates = [figures[name].value for name in ("cache_hit_rate", "similar_rate", "prefix_hit_rate")]
    assert rates == [25.0, 10.0, 25.0]
    for name, figure in figures.items():
        assert figure.unit, name
        assert figure.source.partition(":")[0] in ("measured", "estimated", "published"), name
        if figure.ci95 is not None:
            assert figure.ci95[0] <= figure.value <= figure.ci95[1], name
    assert Measurement.from_json(Measurement(figures).to_json()).figures == figures
    assert set(FIGURE_OF.values()) <= set(figures)


def test_the_figures_of_answers_by_hand() -> None:
    answers = [(0.1, 0.4, 4), (0.2, 0.6, 5), (0.3, 0.3, 1)]
    figures = summarise([a_round(2.0, answers=answers), a_round(2.0, answers=answers)], tariff=TARIFF)
    assert figures["tokens_per_s"].value == pytest.approx(5.0)
    assert figures["ttft_ms"].value == pytest.approx(200.0)
    assert figures["tpot_ms"].value == pytest.approx(100.0)
    assert "tokens_per_s" not in summarise([a_round()], tariff=TARIFF)


def test_the_arithmetic_by_hand() -> None:
    figures = summarise([a_round(), a_round()], tariff=TARIFF)
    assert figures["throughput_per_s"].value == pytest.approx(200)
    assert figures["energy_j_per_inference"].value == pytest.approx(1.0 * 10 / 100)
    assert figures["cost_per_million"].value == pytest.approx(0.005 * 1e6 / 3600 * 3.6)
    assert figures["co2e_g_per_million"].value == pytest.approx(0.1 * 1e6 / 3.6e6 * 360 * 1.5)
    assert figures["energy_j_per_inference"].source.startswith("estimated: CPU time x published TDP per core")


def test_a_meters_joules_win_over_the_estimate() -> None:
    rounds = [a_round(joules=3.0, energy_source="measured: RAPL (package-0)")] * 2
    energy = summarise(rounds, tariff=TARIFF)["energy_j_per_inference"]
    assert energy.value == pytest.approx(0.03)
    assert energy.source == "measured: RAPL (package-0)"


def test_a_single_round_has_no_interval() -> None:
    figures = summarise([a_round()], tariff=TARIFF)
    assert figures["throughput_per_s"].ci95 is None
    assert figures["cost_per_million"].ci95 is None


def test_what_was_not_taken_is_left_out() -> None:
    assert summarise([], tariff=TARIFF) == {}
    assert set(summarise([], tariff=TARIFF, size_bytes=10)) == {"size_mb"}
    assert "latency_ms.p50" not in summarise([a_round()], tariff=TARIFF)


def test_latencies_given_replace_those_of_the_rounds() -> None:
    figures = summarise([a_round(latencies_ms=[1.0] * 10)], tariff=TARIFF, latencies_ms=[7.0] * 10)
    assert figures["latency_ms.p50"].value == 7.0


@given(st.lists(st.floats(0.1, 10), min_size=2, max_size=20), st.floats(1.5, 5))
def test_a_faster_variant_has_more_throughput_and_a_lower_cost(seconds: list[float], factor: float) -> None:
    slow = summarise([a_round(s) for s in seconds], tariff=TARIFF)
    fast = summarise([a_round(s / factor) for s in seconds], tariff=TARIFF)
    assert fast["throughput_per_s"].value == pytest.approx(slow["throughput_per_s"].value * factor)
    assert fast["cost_per_million"].value == pytest.approx(slow["cost_per_million"].value / factor)
    total = sum(a_round()["count"] for _ in seconds) / sum(seconds)  # type: ignore[misc]
    assert slow["throughput_per_s"].value == pytest.approx(total)


def test_a_bench_run_becomes_figures() -> None:
    answer = {
        "latency_ms": {"p50": {"value": 2.0, "ci95": [1.9, 2.1]}, "p99": {"value": 4.0, "ci95": None}},
        "throughput": {"value": 500.0, "ci95": [400.0, 600.0]},
        "joules": 50.0,
        "energy_source": "measured: RAPL (package-0)",
        "count": 1000,
        "peak_memory_bytes": 7_000_000,
    }
    figures = summarise_bench(answer, tariff=TARIFF, size_bytes=1_000_000)
    assert figures["latency_ms.p50"] == Figure(2.0, "ms", "measured", (1.9, 2.1))
    assert figures["throughput_per_s"].ci95 == pytest.approx((400.0, 600.0))
    assert figures["energy_j_per_inference"] == Figure(0.05, "J", "measured: RAPL (package-0)")
    assert figures["cost_per_million"].value == pytest.approx(1 / 500 * 1e6 / 1000)
    assert figures["peak_memory_mb"].value == 7.0
    answer["throughput"] = {"value": 500.0, "ci95": None}
    assert summarise_bench(answer, tariff=TARIFF)["throughput_per_s"].ci95 is None
