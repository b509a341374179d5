import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.costs.energy import energy_of_cpu_time, energy_per_inference, watts_per_cpu
from hasten.costs.power import find, plain_name, processor_name, threads_per_core, watts_per_core
from hasten.measurement import Figure


@pytest.mark.parametrize(
    ("cpuinfo_name", "plain"),
    [
        ("Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz", "Intel Xeon Platinum 8375C"),
        ("Intel(R) Xeon(R) Platinum 8480+", "Intel Xeon Platinum 8480+"),
        ("AMD EPYC 7763 64-Core Processor", "AMD EPYC 7763"),
        ("AMD EPYC 9R14", "AMD EPYC 9R14"),
        ("12th Gen Intel(R) Core(TM) i7-1260P", "Intel Core i7-1260P"),
        ("AMD Ryzen 9 5950X 16-Core Processor", "AMD Ryzen 9 5950X"),
        ("AMD Ryzen 7 5800U with Radeon Graphics", "AMD Ryzen 7 5800U"),
    ],
)
def test_a_processor_is_found_by_the_name_that_the_kernel_gives_it(cpuinfo_name: str, plain: str) -> None:
    assert plain_name(cpuinfo_name) == plain
    found = find(cpuinfo_name)
    assert found is not None
    assert found.name == plain


def test_a_listed_processor_has_a_published_power() -> None:
    watts = watts_per_core("Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz")
    assert watts.value == pytest.approx(300 / 32)
    assert watts.unit == "W"
    assert watts.source.startswith("published: 300 W TDP over 32 cores")


def test_an_unlisted_processor_gets_its_familys_median_and_says_so() -> None:
    watts = watts_per_core("AMD EPYC")
    assert watts.source.startswith("estimated: ")
    assert "AMD EPYC is not in the table" in watts.source
    assert 1 < watts.value < 20


def test_an_unknown_processor_gets_the_median_of_all_and_says_so() -> None:
    assert "listed processors" in watts_per_core("Loongson-3A6000").source
    assert "no name here" in watts_per_core("unknown").source


def test_hardware_threads_share_a_cores_power() -> None:
    one = watts_per_cpu("AMD EPYC 7763 64-Core Processor", threads_per_core=1)
    two = watts_per_cpu("AMD EPYC 7763 64-Core Processor", threads_per_core=2)
    assert two.value == pytest.approx(one.value / 2)
    assert "2 hardware threads a core" in two.source


def test_cpuinfo_tells_the_name_and_the_threads_of_a_core() -> None:
    text = "processor\t: 0\nmodel name\t: AMD EPYC 7763 64-Core Processor\nsiblings\t: 4\ncpu cores\t: 2\n"
    assert processor_name(text) == "AMD EPYC 7763 64-Core Processor"
    assert threads_per_core(text) == 2
    assert threads_per_core("") == 1


def test_an_arm_core_is_a_graviton_only_on_amazon() -> None:
    text = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n"
    assert processor_name(text, "Amazon EC2") == "AWS Graviton3"
    assert processor_name(text, "Ampere") == "unknown"


def test_energy_is_cpu_time_times_power() -> None:
    joules = energy_of_cpu_time(10.0, Figure(5.0, "W", "published: a table"))
    assert joules.value == 50.0
    assert joules.unit == "J"
    assert joules.source == "estimated: CPU time x published TDP per core (published: a table)"


@given(st.floats(1e-3, 1e6), st.integers(1, 10**6))
def test_energy_per_inference_keeps_the_total_and_the_source(joules: float, count: int) -> None:
    each = energy_per_inference(Figure(joules, "J", "measured: RAPL", (joules / 2, joules * 2)), count)
    assert each.value * count == pytest.approx(joules)
    assert each.source == "measured: RAPL"
    assert each.ci95 is not None
    assert each.ci95[0] <= each.value <= each.ci95[1]


def test_energy_of_no_inference_is_refused() -> None:
    with pytest.raises(ValueError, match="positive"):
        energy_per_inference(1.0, 0)
