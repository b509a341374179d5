from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.measure.energy import Meter, Nvml, Rapl
from hasten.measurement import Figure


class Machine:
    """A fake /sys/class/powercap of one socket with core, uncore and memory domains, and a psys."""

    def __init__(self, root: Path, range_uj: int = 1_000_000_000) -> None:
        self.root = root
        names = {
            "intel-rapl:0": "package-0",
            "intel-rapl:0:0": "core",
            "intel-rapl:0:1": "dram",
            "intel-rapl:1": "psys",
        }
        for folder, name in names.items():
            (root / folder).mkdir(parents=True)
            (root / folder / "name").write_text(name + "\n")
            (root / folder / "max_energy_range_uj").write_text(f"{range_uj}\n")
            self.set(folder, 0)

    def set(self, folder: str, microjoules: int) -> None:
        (self.root / folder / "energy_uj").write_text(f"{microjoules}\n")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "powercap")


def test_packages_and_memory_add_up_and_their_parts_are_not_counted_twice(machine: Machine) -> None:
    with Meter(root=machine.root) as meter:
        machine.set("intel-rapl:0", 5_000_000)
        machine.set("intel-rapl:0:0", 4_000_000)
        machine.set("intel-rapl:0:1", 1_000_000)
        machine.set("intel-rapl:1", 50_000_000)
    assert meter.energy.value == pytest.approx(6.0)
    assert meter.energy.unit == "J"
    assert meter.energy.source.startswith("measured: RAPL (package-0, dram")
    assert meter.measured


def test_a_counter_that_goes_around_is_counted_on(machine: Machine) -> None:
    machine.set("intel-rapl:0", 999_000_000)
    with Meter(root=machine.root) as meter:
        machine.set("intel-rapl:0", 2_000_000)
    assert meter.energy.value == pytest.approx(3.0)


@given(st.lists(st.integers(0, 999_999), min_size=1, max_size=30), st.integers(0, 999_999))
def test_sampling_between_times_around_loses_nothing(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int], start: int
) -> None:
    machine = Machine(tmp_path_factory.mktemp("rapl") / "powercap", range_uj=1_000_000)
    now = start
    machine.set("intel-rapl:0", now)
    with Meter(root=machine.root) as meter:
        for step in steps:
            now = (now + step) % 1_000_000
            machine.set("intel-rapl:0", now)
            meter.sample()
    assert meter.energy.value == pytest.approx(sum(steps) / 1e6)


def test_without_counters_energy_is_an_estimate_from_cpu_time(tmp_path: Path) -> None:
    cpu: Iterator[float] = iter([10.0, 14.0])
    watts = Figure(5.0, "W", "published: a table")
    with Meter(root=tmp_path / "none", watts=watts, cpu_clock=lambda: next(cpu)) as meter:
        pass
    assert meter.energy.value == 20.0
    assert meter.energy.source == "estimated: CPU time x published TDP per core (published: a table)"
    assert meter.cpu_seconds == 4.0
    assert "no RAPL counters" in meter.reason
    assert not meter.measured


def test_counters_for_root_only_are_an_estimate_with_the_reason(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Path.read_text

    def read(path: Path, *args: object, **options: object) -> str:
        if path.name == "energy_uj":
            raise PermissionError(13, "Permission denied")
        return whole(path)

    monkeypatch.setattr(Path, "read_text", read)
    assert Rapl.open(machine.root) == f"{machine.root}/intel-rapl:*/energy_uj is readable by root only"


def test_a_broken_domain_is_left_out(machine: Machine) -> None:
    (machine.root / "intel-rapl:0:1" / "energy_uj").write_text("nonsense")
    rapl = Rapl.open(machine.root)
    assert isinstance(rapl, Rapl)
    assert [domain.name for domain in rapl.domains] == ["package-0"]


def fake_nvml(millijoules: list[int]) -> SimpleNamespace:
    return SimpleNamespace(
        NVMLError=RuntimeError,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: len(millijoules),
        nvmlDeviceGetHandleByIndex=lambda i: i,
        nvmlDeviceGetTotalEnergyConsumption=lambda i: millijoules[i],
    )


def test_a_gpus_counter_is_added_to_the_processors(machine: Machine) -> None:
    counts = [1000, 2000]
    with Meter("gpu", root=machine.root, nvml=fake_nvml(counts)) as meter:
        counts[0] += 7000
        machine.set("intel-rapl:0", 3_000_000)
    assert meter.energy.value == pytest.approx(10.0)
    assert "RAPL" in meter.energy.source
    assert "NVML (2 GPUs" in meter.energy.source


def test_a_gpu_beside_a_processor_without_counters_is_an_estimate(tmp_path: Path) -> None:
    counts = [0]
    cpu: Iterator[float] = iter([0.0, 2.0])
    watts = Figure(5.0, "W", "published: a table")
    meter = Meter("gpu", root=tmp_path, watts=watts, cpu_clock=lambda: next(cpu), nvml=fake_nvml(counts))
    with meter:
        counts[0] = 4000
    assert meter.energy.value == pytest.approx(14.0)
    assert meter.energy.source.startswith("estimated: ")
    assert "NVML" in meter.energy.source


def test_a_driver_that_is_not_there_is_a_reason() -> None:
    library = fake_nvml([])
    assert Nvml.open(library) == "there is no NVIDIA GPU"

    def fail() -> None:
        raise RuntimeError("Driver Not Loaded")

    library.nvmlInit = fail
    assert Nvml.open(library) == "NVML: Driver Not Loaded"


def test_a_gpu_whose_counter_cannot_be_read_is_said_to_be_left_out(tmp_path: Path) -> None:
    meter = Meter("gpu", root=tmp_path, watts=Figure(5.0, "W", "published: a table"), nvml=fake_nvml([]))
    with meter:
        pass
    assert not meter.counts_the_gpu
    assert meter.energy.source.endswith("the GPU left out")
