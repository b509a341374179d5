"""Rates and classes every executed operator: what it reaches, which roof is above it, and what share of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hasten.costs.roofline import Bound
from hasten.diagnose.join import Joined
from hasten.diagnose.kinds import MOVEMENT, UNRATED
from hasten.diagnose.roofline import BYTES_OF, By, Roofs, floors, precision_of


@dataclass(frozen=True)
class OperatorRow:
    """One executed operator. `kind` is the model's word, `kernel` the runtime's, `executed` the kernel it chose.

    `share` is of the whole run, overhead included. `flops` and `bytes` are None where the runtime inserted the operator
    (a reorder, a conversion) or renamed it beyond recognition. `roof` is the rate of the roof that applies, in
    `roof_unit` (GFLOP/s or GB/s); `fraction` is its least time over its measured time, and passes 1 where data stays in
    the cache.
    """

    name: str
    kind: str
    kernel: str
    microseconds: float
    share: float
    executed: str
    precision: str
    flops: int | None
    bytes: int | None
    by: By
    roof: float | None
    roof_unit: str
    fraction: float | None
    sources: tuple[str, ...] = ()

    @property
    def intensity(self) -> float | None:
        """FLOPs for each byte moved."""
        return self.flops / self.bytes if self.flops is not None and self.bytes else None

    @property
    def gflops(self) -> float | None:
        """The achieved GFLOP/s."""
        return self.flops / self.microseconds / 1e3 if self.flops is not None and self.microseconds > 0 else None

    @property
    def gb_s(self) -> float | None:
        """The achieved GB/s."""
        return self.bytes / self.microseconds / 1e3 if self.bytes is not None and self.microseconds > 0 else None

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"intensity": self.intensity, "gflops": self.gflops, "gb_s": self.gb_s}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> OperatorRow:
        known = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        return cls(**known | {"sources": tuple(data.get("sources", ()))})


def rows(joined: Sequence[Joined], wall_us: float, limits: Roofs) -> tuple[OperatorRow, ...]:
    """Rate every joined operator of a run that took `wall_us`, the longest first."""
    # The profiler slows every operator a little; shares must not add up to more than the run.
    whole = max(wall_us, sum(row.time.microseconds for row in joined))
    return tuple(sorted((_row(row, whole, limits) for row in joined), key=lambda row: -row.microseconds))


def _row(row: Joined, whole: float, limits: Roofs) -> OperatorRow:
    time = row.time
    precision = precision_of(time.executed, row.kind if row.quantised else time.kind)
    size = row.bytes
    if size is not None and not row.quantised:
        size = int(size * BYTES_OF[precision] / 4)
    flops = row.flops
    by: By = "unknown"
    roof, unit, fraction = None, "", None
    if row.kind in UNRATED:
        flops = size = None
    known = None if flops is None or size is None else floors(flops, size, precision, limits)
    if known is not None and size is not None:
        by = known.by
        roof, unit = _roof(known, size, precision, limits)
        fraction = known.us / time.microseconds if time.microseconds > 0 else None
    elif time.kind in MOVEMENT:
        by = "memory"
    elif time.microseconds <= 2 * limits.operator_us:
        by = "overhead"
    return OperatorRow(
        time.name,
        row.kind,
        time.kind,
        time.microseconds,
        time.microseconds / whole if whole > 0 else 0.0,
        time.executed,
        precision,
        flops,
        size,
        by,
        roof,
        unit,
        fraction,
        time.sources,
    )


def _roof(known: Bound, size: float, precision: str, limits: Roofs) -> tuple[float | None, str]:
    if known.by == "compute":
        return limits.rate(precision), "GFLOP/s"
    if known.by == "memory":
        return limits.bandwidth(size), "GB/s"
    return None, ""
