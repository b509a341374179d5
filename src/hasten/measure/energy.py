"""Measures the energy of a stretch of work: by the processor's or the GPU's counter, else from CPU time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from hasten.costs.energy import energy_of_cpu_time, watts_per_cpu
from hasten.measurement import Figure
from hasten.recipe import Recipe

POWERCAP = Path("/sys/class/powercap")
DOMAINS = ("package", "dram")
"""RAPL domains that add up without counting anything twice: core and uncore lie inside package; psys holds it all."""


class Counter(Protocol):
    """Something that counts joules. `sample` takes in what was used since the last call."""

    source: str

    def sample(self) -> None: ...

    @property
    def joules(self) -> float: ...


@dataclass
class _Domain:
    path: Path
    name: str
    range_uj: int
    last_uj: int


@dataclass
class Rapl:
    """The processor's own energy counters (Intel and AMD), through the kernel's powercap files.

    They count the whole socket, whoever used it. They wrap: `sample` must be called more often than a counter goes
    around (about 20 minutes at 200 W), and a smaller value than before means one time around.
    """

    domains: list[_Domain]
    source: str = ""
    microjoules: int = 0

    @classmethod
    def open(cls, root: Path = POWERCAP) -> Rapl | str:
        """The counters under `root`, or the reason why there are none to read."""
        found, refused = [], False
        for folder in sorted(root.glob("intel-rapl:*")):
            try:
                name = (folder / "name").read_text().strip()
                if not name.startswith(DOMAINS):
                    continue
                highest = int((folder / "max_energy_range_uj").read_text())
                found.append(_Domain(folder, name, highest, int((folder / "energy_uj").read_text())))
            except PermissionError:
                refused = True
            except (OSError, ValueError):
                continue
        if not any(domain.name.startswith("package") for domain in found):
            if refused:
                return f"{root}/intel-rapl:*/energy_uj is readable by root only"
            return "this machine shows no RAPL counters"
        names = ", ".join(domain.name for domain in found)
        return cls(found, f"measured: RAPL ({names}: whole sockets, other work included)")

    def sample(self) -> None:
        for domain in self.domains:
            now = int((domain.path / "energy_uj").read_text())
            used = now - domain.last_uj
            self.microjoules += used if used >= 0 else used + domain.range_uj
            domain.last_uj = now

    @property
    def joules(self) -> float:
        return self.microjoules / 1e6


@dataclass
class Nvml:
    """The energy counters of NVIDIA GPUs (Volta and newer), through NVML."""

    library: Any
    handles: list[Any]
    source: str = ""
    start_mj: list[int] = field(default_factory=list)
    millijoules: int = 0

    @classmethod
    def open(cls, library: Any = None) -> Nvml | str:
        """The counters of every GPU, or the reason why there are none. `library` stands in for pynvml."""
        if library is None:
            try:
                library = import_module("pynvml")
            except ImportError:
                return "pynvml is not installed"
        try:
            library.nvmlInit()
            handles = [library.nvmlDeviceGetHandleByIndex(i) for i in range(library.nvmlDeviceGetCount())]
            start = [library.nvmlDeviceGetTotalEnergyConsumption(handle) for handle in handles]
        except library.NVMLError as error:
            return f"NVML: {error}"
        if not handles:
            return "there is no NVIDIA GPU"
        return cls(library, handles, f"measured: NVML ({len(handles)} GPUs, other work included)", start)

    def sample(self) -> None:
        now = [self.library.nvmlDeviceGetTotalEnergyConsumption(handle) for handle in self.handles]
        self.millijoules = sum(now) - sum(self.start_mj)

    @property
    def joules(self) -> float:
        return self.millijoules / 1e3


def kind_of(recipe: Recipe) -> str:
    """The kind of device that a recipe keeps busy: "gpu" where it names one."""
    device = str(recipe.runtime.get("device", "cpu")).partition(":")[0]
    return "gpu" if device in ("cuda", "tensorrt") else "cpu"


@dataclass
class Meter:
    """Measures what a `with` block uses. Afterwards `energy` is in joules and says how it was found.

    RAPL first; for `kind` "gpu" NVML as well, added to it. Without a counter that can be read: CPU time of this process
    times the published power of a CPU, and `reason` says why. `seconds` and `cpu_seconds` are of the block.
    """

    kind: str = "cpu"
    root: Path = POWERCAP
    watts: Figure | None = None
    clock: Callable[[], float] = time.perf_counter
    cpu_clock: Callable[[], float] = time.process_time
    nvml: Any = None
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    reason: str = ""
    _counters: list[Counter] = field(default_factory=list)

    def __enter__(self) -> Meter:
        opened: list[Rapl | Nvml | str] = [Rapl.open(self.root)]
        if self.kind == "gpu":
            opened.append(Nvml.open(self.nvml))
        self._counters = [counter for counter in opened if not isinstance(counter, str)]
        self.reason = "; ".join(counter for counter in opened if isinstance(counter, str))
        self._started, self._cpu_started = self.clock(), self.cpu_clock()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds, self.cpu_seconds = self.clock() - self._started, self.cpu_clock() - self._cpu_started
        self.sample()

    def sample(self) -> None:
        """Read the counters; long blocks call it every few minutes, so that no counter goes around unseen."""
        for counter in self._counters:
            counter.sample()

    @property
    def measured(self) -> bool:
        """Whether every counter that this kind of device needs could be read."""
        return bool(self._counters) and not self.reason

    @property
    def counts_the_gpu(self) -> bool:
        """Whether a GPU's counter is among those that could be read."""
        return any(isinstance(counter, Nvml) for counter in self._counters)

    @property
    def energy(self) -> Figure:
        """Joules of the block."""
        if self.measured:
            sources = " and ".join(counter.source.removeprefix("measured: ") for counter in self._counters)
            return Figure(sum(counter.joules for counter in self._counters), "J", f"measured: {sources}")
        estimate = energy_of_cpu_time(self.cpu_seconds, self.watts or watts_per_cpu())
        gpus = [counter for counter in self._counters if isinstance(counter, Nvml)]
        if not gpus:
            return replace(estimate, source=f"{estimate.source}, the GPU left out") if self.kind == "gpu" else estimate
        joules = estimate.value + gpus[0].joules
        return Figure(joules, "J", f"{estimate.source} + {gpus[0].source.removeprefix('measured: ')}")
