"""A device: where a model runs, with the limits that were measured on it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from hasten.measurement import Figure


@dataclass(frozen=True)
class Device:
    """`cpus` are the core numbers that may be used (container quotas respected).

    `limits` maps "gemm_fp32_gflops", "gemm_bf16_gflops", "gemm_int8_gops", "read_gb_s", "copy_gb_s" and
    "dispatch_us" (the least time of one trivial operator) to measured figures over all of `cpus`. `accelerators` are
    the names of the GPUs beside them, whose limits are not measured.
    """

    name: str
    kind: str = "cpu"
    cpus: tuple[int, ...] = ()
    memory_bytes: int = 0
    caches_bytes: Mapping[str, int] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    limits: Mapping[str, Figure] = field(default_factory=dict)
    accelerators: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        """What makes measurements comparable: the same processors, core count and memory; not the noisy limits."""
        facts = [self.name, self.kind, len(self.cpus), self.memory_bytes >> 30, sorted(self.flags)]
        text = json.dumps([*facts, *self.accelerators])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def gemm_gflops(self, precision: str) -> float | None:
        """The measured GEMM rate for "fp32", "bf16", "fp16" or "int8", or None where it was not taken."""
        name = "gemm_int8_gops" if precision == "int8" else f"gemm_{precision}_gflops"
        figure = self.limits.get(name)
        return None if figure is None else figure.value

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {
            "limits": {name: figure.to_json() for name, figure in self.limits.items()},
            "fingerprint": self.fingerprint,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Device:
        return cls(
            data["name"],
            data["kind"],
            tuple(data["cpus"]),
            data["memory_bytes"],
            dict(data["caches_bytes"]),
            tuple(data["flags"]),
            {name: Figure.from_json(figure) for name, figure in data["limits"].items()},
            tuple(data.get("accelerators", ())),
        )
