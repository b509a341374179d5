"""This machine as a device: what it is, what may be used of it, and its measured limits, kept between runs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hasten.device import Device
from hasten.diagnose import hardware
from hasten.diagnose.quota import quota
from hasten.errors import HastenError, InvalidInput
from hasten.isolate import Limits, run
from hasten.measurement import Figure
from hasten.runtimes import Runtime, all_runtimes
from hasten.runtimes.nvidia import gpus

PROBE = "6"
"""Raise it when the probe measures something else: limits kept by an older probe are then measured anew."""
REPEATS, QUICK_REPEATS = 32, 12
RUNTIME_SECONDS, QUICK_SECONDS = 8.0, 2.0
BUSY, HOUR_S = 0.3, 3600.0
NAMES = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}

Progress = Callable[[float | None, str], None]


def device(
    cpus: tuple[int, ...] | None = None,
    refresh: bool = False,
    quick: bool = False,
    *,
    on_progress: Progress | None = None,
    cache: Path | None = None,
) -> Device:
    """This machine with the limits of `cpus` (default: all that may be used).

    Limits are measured once and kept in the user's cache folder until the machine, the runtimes or the probe change;
    those that were measured on a busy machine are measured again after an hour, and the better of both is kept.
    `refresh` measures anew. `quick` measures with fewer repeats where nothing is kept yet. Raises `InvalidInput` for
    cores that this process may not use.
    """
    bare = machine(cpus)
    folder = cache or cache_folder()
    kept = [folder / f"device-{key(bare, name)}.json" for name in (("full", "quick") if quick else ("full",))]
    earlier: Mapping[str, Figure] = {}
    if not refresh:
        for path in kept:
            if (known := _read(path, bare)) is None:
                continue
            if not _stale(path, known):
                return known
            earlier = known.limits
            break
    found = replace(bare, limits=better(earlier, measure(bare, quick, on_progress)))
    if found.limits:
        _write(kept[-1], found)
    return found


def machine(cpus: tuple[int, ...] | None = None, root: Path = Path("/")) -> Device:
    """This machine without limits: nothing is measured."""
    allowed = allowed_cpus(root)
    if cpus is not None:
        may = tuple(sorted(os.sched_getaffinity(0)))
        outside = sorted(set(cpus) - set(may))
        if outside or not cpus:
            raise InvalidInput(
                f"cores {', '.join(map(str, outside)) or '(none)'} cannot be used by this process",
                f"choose among {', '.join(map(str, may))}",
            )
        allowed = tuple(sorted(set(cpus)))
    limit = quota(root).memory_bytes
    installed = hardware.memory_bytes(root)
    return Device(
        hardware.processor(root),
        "cpu",
        allowed,
        installed if limit is None else min(installed, limit),
        hardware.caches(allowed[0], root),
        hardware.flags(root),
        accelerators=gpus(root),
    )


def allowed_cpus(root: Path = Path("/")) -> tuple[int, ...]:
    """The cores that this process may use: its affinity, and no more than its container's quota pays for."""
    affinity = tuple(sorted(os.sched_getaffinity(0)))
    paid = quota(root).cpus
    if paid is None or paid >= len(affinity):
        return affinity
    return hardware.spread(affinity, max(1, math.floor(paid)), hardware.siblings(affinity, root))


def measure(bare: Device, quick: bool = False, on_progress: Progress | None = None) -> dict[str, Figure]:
    """The limits of `bare`: each probe in a worker of its own on its cores; one that fails leaves its limits out."""
    threads = max(1, len(bare.cpus))
    limits = Limits(cpus=bare.cpus or None, seconds=60)
    repeats = QUICK_REPEATS if quick else REPEATS
    seen: dict[str, dict[str, Any]] = {}
    for name, runtime in _probed().items():
        if "onnx" in runtime.accepts and runtime.availability().usable:
            payload = {
                "runtime": name,
                "threads": threads,
                "repeats": repeats,
                "seconds": QUICK_SECONDS if quick else RUNTIME_SECONDS,
            }
            try:
                seen[name] = run("hasten.diagnose.probe:gemm", payload, limits, on_progress)
            except HastenError:
                continue
    try:
        bandwidth = run("hasten.diagnose.probe:memory", _memory_payload(bare, threads, repeats), limits, on_progress)
    except HastenError:
        bandwidth = {}
    return limits_of(seen, bandwidth, threads)


def limits_of(
    seen: Mapping[str, Mapping[str, Any]], bandwidth: Mapping[str, list[float]], threads: int
) -> dict[str, Figure]:
    """The best runtime's rate at each precision, the least starting costs, and the bandwidths, as figures. Pure."""
    found: dict[str, Figure] = {}
    with_threads = f"{threads} thread{'s' if threads > 1 else ''}"
    for precision in ("fp32", "bf16", "fp16", "int8"):
        rates = {name: result["rates"][precision] for name, result in seen.items() if precision in result["rates"]}
        if rates:
            best = max(rates, key=lambda name: best_of(rates[name]["values"])[0])
            size = rates[best]["size"]
            unit = "GOP/s" if precision == "int8" else "GFLOP/s"
            name = "gemm_int8_gops" if precision == "int8" else f"gemm_{precision}_gflops"
            source = f"measured: {NAMES.get(best, best)} MatMul {size}^3 {precision}, {with_threads}"
            found[name] = _figure(rates[best]["values"], unit, source)
    for name, key_, what in (
        ("read_gb_s", "read", "NumPy max"),
        ("copy_gb_s", "copy", "NumPy copy, bytes read plus written"),
        ("cache_gb_s", "cache", "NumPy dot inside the level 2 cache"),
    ):
        if bandwidth.get(key_):
            found[name] = _figure(bandwidth[key_], "GB/s", f"measured: {what}, {with_threads}")
    for name, what in (("dispatch_us", "one small Softmax"), ("operator_us", "one more small Softmax in a row of 64")):
        costs = {runtime: result[name] for runtime, result in seen.items() if result.get(name)}
        if costs:
            best = min(costs, key=lambda runtime: min(costs[runtime]))
            source = f"measured: {NAMES.get(best, best)}, {what}, least of {len(costs[best])} repeats"
            found[name] = Figure(min(costs[best]), "us", source)
    return found


def best_of(values: list[float]) -> tuple[float, tuple[float, float] | None]:
    """The best of repeated rates, and the range of their fastest quarter where it has six values or more.

    Other work on the machine only ever slows a repeat down, so the best is nearest to what the device can do; a median
    would put the roof below what operators reach in a quiet moment. With 32 repeats the fastest quarter covers the rate
    that one run in ten exceeds with 95% confidence (order statistics of Binomial(32, 0.9)).
    """
    kept = sorted(values)[-max(1, round(len(values) / 4)) :]
    return kept[-1], (kept[0], kept[-1]) if len(kept) >= 6 else None


def spread(limits: Mapping[str, Figure]) -> float:
    """How far the GEMM rates vary between repeats: the widest interval over its value. Tells a busy machine."""
    widths = [
        (figure.ci95[1] - figure.ci95[0]) / figure.value
        for name, figure in limits.items()
        if name.startswith("gemm") and figure.ci95 is not None and figure.value > 0
    ]
    return max(widths, default=0.0)


def better(one: Mapping[str, Figure], other: Mapping[str, Figure]) -> dict[str, Figure]:
    """The better figure of each limit: the higher rate, the lower cost. Ties go to `other`."""
    found = dict(one) | dict(other)
    for name in one.keys() & other.keys():
        lower = name.endswith("_us")
        if one[name].value < other[name].value if lower else one[name].value > other[name].value:
            found[name] = one[name]
    return found


def cache_folder() -> Path:
    """Where hasten keeps what it can measure again."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "hasten"


def key(bare: Device, thoroughness: str) -> str:
    """What kept limits depend on: the machine, its cores, the runtimes' versions, the probe."""
    versions = {name: runtime.availability().version for name, runtime in sorted(_probed().items())}
    text = json.dumps([PROBE, thoroughness, versions, list(bare.cpus)])
    return f"{bare.fingerprint}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _probed() -> dict[str, Runtime]:
    """The runtimes through which limits are measured: not those that say that the probe tells nothing of them."""
    return {name: runtime for name, runtime in all_runtimes().items() if getattr(runtime, "probed", True)}


def _figure(values: list[float], unit: str, source: str) -> Figure:
    value, ci95 = best_of(values)
    return Figure(value, unit, f"{source}, best of {len(values)} repeats", ci95)


def _memory_payload(bare: Device, threads: int, repeats: int) -> dict[str, Any]:
    """A buffer that no cache holds, two of which still fit well into the memory; and one that a core's cache holds."""
    last = max(bare.caches_bytes.values(), default=32 << 20)
    size = max(256 << 20, 4 * last)
    if bare.memory_bytes:
        size = min(size, bare.memory_bytes // 8)
    near = bare.caches_bytes.get("L2", 512 << 10) // 2
    return {"threads": threads, "bytes": size, "cache_bytes": near, "repeats": repeats}


def _read(path: Path, bare: Device) -> Device | None:
    """Kept limits on this machine; None where there are none or the file cannot be read."""
    try:
        limits = json.loads(path.read_text(encoding="utf-8"))["limits"]
        return replace(bare, limits={name: Figure.from_json(figure) for name, figure in limits.items()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _stale(path: Path, known: Device) -> bool:
    """Whether the limits were taken on a busy machine and an hour has passed: a better moment may have come."""
    try:
        return spread(known.limits) > BUSY and time.time() - path.stat().st_mtime > HOUR_S
    except OSError:
        return True


def _write(path: Path, found: Device) -> None:
    """Atomic; a cache folder that cannot be written only costs the next run its time."""
    part = path.with_suffix(f".{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(found.to_json(), indent=1), encoding="utf-8")
        part.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
