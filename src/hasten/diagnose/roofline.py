"""The roofs that a device puts over one stream, and the least time of operators and of whole models under them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from hasten.costs.roofline import Bound, Roof, bound
from hasten.device import Device
from hasten.diagnose.kinds import HEAVY, QUANTISED
from hasten.model import Operator

By = Literal["compute", "memory", "overhead", "unknown"]

PRECISIONS = ("fp32", "bf16", "fp16", "int8")
BYTES_OF = {"fp32": 4, "bf16": 2, "fp16": 2, "int8": 1}


@dataclass(frozen=True)
class Roofs:
    """What one stream may reach. `operator_us` is what starting one operator costs."""

    gflops: Mapping[str, float]
    memory_gb_s: float | None = None
    cache_gb_s: float | None = None
    cache_bytes: int = 0
    operator_us: float = 0.0

    def rate(self, precision: str) -> float | None:
        """The GEMM rate at `precision`; where it was not taken, the best rate of the wider precisions."""
        if precision in self.gflops:
            return self.gflops[precision]
        width = BYTES_OF.get(precision, 4)
        return max((rate for name, rate in self.gflops.items() if BYTES_OF[name] >= width), default=None)

    def bandwidth(self, size: float) -> float | None:
        """GB/s for `size` bytes: the cache's where they fit, else the memory's."""
        if self.cache_gb_s is not None and size <= self.cache_bytes:
            return max(self.cache_gb_s, self.memory_gb_s or 0.0)
        return self.memory_gb_s


def roofs(device: Device, share: float = 1.0) -> Roofs:
    """The limits of `device` for a stream that has `share` of its cores (1 / streams, when streams run together)."""
    rates = {name: rate * share for name in PRECISIONS if (rate := device.gemm_gflops(name))}
    memory = _limit(device, "read_gb_s")
    cache = _limit(device, "cache_gb_s")
    levels = [size for name, size in device.caches_bytes.items() if name in ("L2", "L3")]
    return Roofs(
        rates,
        None if memory is None else memory * share,
        None if cache is None else cache * share,
        int(max(levels, default=0) * share),
        _limit(device, "operator_us") or 0.0,
    )


def floors(flops: float, size: float, precision: str, limits: Roofs) -> Bound | None:
    """The floors under the time of one operator that does `flops` at `precision` and moves `size` bytes.

    None where the device's limits are not known.
    """
    rate, bandwidth = limits.rate(precision), limits.bandwidth(size)
    if not rate or not bandwidth:
        return None
    return bound(flops, size, Roof(rate, bandwidth, limits.operator_us))


def precision_of(executed: str, kind: str = "") -> str:
    """The precision that a kernel name such as `brgemm_avx512_amx_i8` tells; "fp32" where it tells nothing."""
    text = executed.lower()
    if kind in QUANTISED or any(mark in text for mark in ("i8", "u8", "int8")):
        return "int8"
    if "bf16" in text or "bfloat16" in text:
        return "bf16"
    if "f16" in text or "float16" in text or "half" in text:
        return "fp16"
    return "fp32"


def size_at(operator: Operator, precision: str) -> float:
    """The bytes of `operator` when its tensors are held at `precision`.

    `Operator.bytes` counts a float model at four bytes a number; a kind that is quantised already is left as it is.
    """
    return operator.bytes * (1.0 if operator.kind in QUANTISED else BYTES_OF[precision] / 4)


def best_us(operators: Iterable[Operator], precision: str, limits: Roofs) -> float | None:
    """The least time of all `operators` at `precision`: the sum of their bounds.

    Only heavy kinds move data: an ideal runtime fuses the rest into them, so those count for their arithmetic alone.
    Weights come from memory unless all of them together fit in the cache. Starting an operator is free. It is a floor
    that no runtime reaches, so what is above it is an honest reading of what is left on the table.
    None where the device's rate at `precision` was not taken.
    """
    if precision not in limits.gflops:
        return None
    listed = list(operators)
    weights = sum(o.weight_bytes for o in listed) * BYTES_OF[precision] / 4
    resident = weights <= limits.cache_bytes
    total = 0.0
    for operator in listed:
        compute = operator.flops / limits.gflops[precision] / 1e3
        if operator.kind not in HEAVY:
            total += compute
            continue
        size = size_at(operator, precision)
        weight = min(size, operator.weight_bytes * BYTES_OF[precision] / 4)
        moved = 0.0
        for part, in_cache in ((size - weight, True), (weight, resident)):
            bandwidth = limits.bandwidth(part) if in_cache else limits.memory_gb_s
            moved += part / bandwidth / 1e3 if bandwidth else 0.0
        total += max(compute, moved)
    return total


def _limit(device: Device, name: str) -> float | None:
    figure = device.limits.get(name)
    return None if figure is None else figure.value
