"""What to know of a machine before believing its figures: quotas, noise, spinning threads, empty promises."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hasten.device import Device
from hasten.diagnose import hardware
from hasten.diagnose.device import spread
from hasten.diagnose.quota import Quota, quota

NOISE = 0.05
"""Above this share of disturbed time a difference of 5% may be the machine's."""
FASTER = 1.3
"""An instruction set that is listed for a precision should make it this much faster than fp32, at least."""


@dataclass(frozen=True)
class Surroundings:
    """What notes are made of. `waiting` is the share of time in which work waited for a core (or None);

    `lost` the share of a busy moment that this process did not get; `shared` pairs of usable cores that are one
    physical core; `governor` the frequency governor's name or "".
    """

    affinity: int
    quota: Quota = field(default_factory=Quota)
    waiting: float | None = None
    lost: float = 0.0
    shared: Sequence[tuple[int, ...]] = ()
    governor: str = ""
    environment: Mapping[str, str] | None = None


def look(device: Device, root: Path = Path("/")) -> Surroundings:
    """Look around for a quarter of a second. Before the limits are measured: that would be noise of our own."""
    siblings = hardware.siblings(device.cpus, root)
    inside = {tuple(c for c in group if c in device.cpus) for group in siblings.values()}
    return Surroundings(
        len(os.sched_getaffinity(0)),
        quota(root),
        waiting(_text(root / "proc/pressure/cpu")),
        _lost(),
        sorted(group for group in inside if len(group) > 1),
        _text(
            root / f"sys/devices/system/cpu/cpu{device.cpus[0] if device.cpus else 0}/cpufreq/scaling_governor"
        ).strip(),
        dict(os.environ),
    )


def notes(device: Device, seen: Surroundings) -> tuple[str, ...]:
    """Sentences, the most important first. Pure."""
    found: list[str] = []
    disturbed = max(seen.lost, seen.waiting or 0.0)
    if disturbed > NOISE:
        found.append(
            f"This machine is busy with other work: {disturbed:.0%} of the time was lost to it just now. Figures will "
            "have wide intervals, and differences under 5% may not be decided."
        )
        if "gemm_fp32_gflops" in device.limits:
            found.append(
                "On a busy machine threads that spin while they wait do harm: [runtime] spinning = false can win with "
                "ONNX Runtime."
            )
    paid = seen.quota.cpus
    if paid is not None and paid < seen.affinity:
        found.append(
            f"The container pays for {paid:g} of {seen.affinity} cores: hasten uses {len(device.cpus)}. A program that "
            f"starts {seen.affinity} threads here is throttled."
        )
    if seen.quota.memory_bytes is not None and seen.quota.memory_bytes < 2 << 30:
        found.append(f"The container has only {seen.quota.memory_bytes / (1 << 30):.2g} GiB of memory.")
    if seen.shared:
        pairs = "; ".join(", ".join(map(str, group)) for group in seen.shared[:4])
        more = " and others" if len(seen.shared) > 4 else ""
        found.append(
            f"Some usable cores are two threads of one physical core ({pairs}{more}): expect less than double."
        )
    if seen.governor == "powersave":
        found.append("The frequency governor is powersave: short runs may be measured before the clock has risen.")
    found += _spinning(seen.environment or {})
    found += _promises(device)
    varied = spread(device.limits)
    if varied > 0.2:
        found.append(
            f"The measured limits vary by {varied:.0%} between repeats: measure them again on a quieter machine with "
            "hasten doctor --refresh."
        )
    return tuple(found)


def waiting(pressure: str) -> float | None:
    """The share of the last ten seconds in which some task waited for a core, from /proc/pressure/cpu."""
    for line in pressure.splitlines():
        fields = dict(part.split("=", 1) for part in line.split()[1:] if "=" in part)
        if line.startswith("some") and "avg10" in fields:
            return float(fields["avg10"]) / 100
    return None


def _spinning(environment: Mapping[str, str]) -> list[str]:
    found = []
    if environment.get("OMP_WAIT_POLICY", "").lower() == "active":
        found.append("OMP_WAIT_POLICY=active makes idle threads spin and take cores from other streams: unset it.")
    if environment.get("KMP_BLOCKTIME", "0") not in ("0", ""):
        blocktime = environment["KMP_BLOCKTIME"]
        found.append(f"KMP_BLOCKTIME={blocktime} makes idle threads spin for that long: set it to 0 or unset it.")
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        if environment.get(name):
            found.append(f"{name}={environment[name]} limits the threads of some libraries here.")
    return found


def _promises(device: Device) -> list[str]:
    """Instruction sets that are listed and do not deliver: hidden by a hypervisor, or unused by the runtimes."""
    fp32 = device.gemm_gflops("fp32")
    found = []
    for precision, marks in (
        ("bf16", ("amx_bf16", "avx512_bf16")),
        ("int8", ("amx_int8", "avx512_vnni", "avx_vnni", "i8mm")),
    ):
        listed = [mark for mark in marks if mark in device.flags]
        rate = device.gemm_gflops(precision)
        if listed and fp32 and rate and rate < FASTER * fp32:
            found.append(
                f"The processor lists {listed[0]}, yet {precision} measures only {rate / fp32:.1f}x fp32 here: "
                f"do not expect {precision} to pay."
            )
        elif listed and fp32 and rate is None:
            found.append(f"The processor lists {listed[0]}, yet no installed runtime computes in {precision} here.")
    return found


def _lost(seconds: float = 0.25) -> float:
    """Work without pause for a moment: what the processor gave to others meanwhile is missing from the CPU time."""
    start, cpu = time.perf_counter(), time.thread_time()
    while time.perf_counter() - start < seconds:
        pass
    return max(0.0, 1 - (time.thread_time() - cpu) / (time.perf_counter() - start))


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
