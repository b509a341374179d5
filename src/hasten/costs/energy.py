"""Energy on paper: CPU time times the published power of a core, and energy per inference."""

from __future__ import annotations

from hasten.costs.power import here, watts_per_core
from hasten.costs.scale import origin, scaled
from hasten.measurement import Figure


def watts_per_cpu(name: str | None = None, threads_per_core: int | None = None) -> Figure:
    """Watts of one busy logical CPU: a core's share of the TDP, split between its hardware threads.

    `name` is the processor's, as /proc/cpuinfo has it; None means this machine's.
    """
    here_name, here_threads = here()
    threads = threads_per_core or here_threads
    core = watts_per_core(here_name if name is None else name)
    shared = f"; {threads} hardware threads a core" if threads > 1 else ""
    return scaled(core, 1 / threads, "W", core.source + shared)


def energy_of_cpu_time(cpu_seconds: float, watts: Figure | float) -> Figure:
    """Joules of `cpu_seconds` on CPUs that draw `watts` each while busy. Idle time, memory and fans are left out."""
    return scaled(watts, cpu_seconds, "J", f"estimated: CPU time x published TDP per core ({origin(watts, 'given')})")


def energy_per_inference(joules: Figure | float, inferences: int) -> Figure:
    """Joules per inference. The source stays that of `joules`: measured by a meter, or estimated."""
    if inferences <= 0:
        raise ValueError(f"inferences must be positive, not {inferences}")
    return scaled(joules, 1 / inferences, "J", origin(joules, "estimated: energy as given"))
