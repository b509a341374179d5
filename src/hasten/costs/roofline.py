"""The roofline: what limits a piece of work, its arithmetic, the bytes it moves or the cost of starting it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from hasten.model import Operator

Class = Literal["compute", "memory", "overhead"]


@dataclass(frozen=True)
class Roof:
    """A device's limits at one precision. `dispatch_us` is the least time of any operator."""

    peak_gflops: float
    bandwidth_gb_s: float
    dispatch_us: float = 0.0

    def __post_init__(self) -> None:
        if self.peak_gflops <= 0 or self.bandwidth_gb_s <= 0 or self.dispatch_us < 0:
            raise ValueError("the peak and the bandwidth of a roof must be positive")

    @property
    def ridge(self) -> float:
        """The arithmetic intensity in FLOPs per byte above which work is bound by arithmetic."""
        return self.peak_gflops / self.bandwidth_gb_s


@dataclass(frozen=True)
class Bound:
    """The three lower bounds on a time, in microseconds; `us` is the one that holds."""

    compute_us: float
    memory_us: float
    overhead_us: float

    @property
    def us(self) -> float:
        return max(self.compute_us, self.memory_us, self.overhead_us)

    @property
    def by(self) -> Class:
        """What the time is bound by; a tie goes to arithmetic, then to memory."""
        if self.compute_us >= max(self.memory_us, self.overhead_us):
            return "compute"
        return "memory" if self.memory_us >= self.overhead_us else "overhead"


def attainable_gflops(intensity: float, roof: Roof) -> float:
    """GFLOP/s that work of `intensity` FLOPs per byte can reach: min(peak, intensity x bandwidth).

    Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009.
    """
    return min(roof.peak_gflops, intensity * roof.bandwidth_gb_s)


def bound(flops: float, bytes_moved: float, roof: Roof) -> Bound:
    """The least time of work that does `flops` and moves `bytes_moved`."""
    return Bound(flops / roof.peak_gflops / 1e3, bytes_moved / roof.bandwidth_gb_s / 1e3, roof.dispatch_us)


def bound_of(operator: Operator, roof: Roof, element_scale: float = 1.0) -> Bound:
    """The least time of one operator; `element_scale` is the element size over the model's (0.5: fp32 in bf16)."""
    return bound(operator.flops, operator.bytes * element_scale, roof)


def total_us(operators: Iterable[Operator], roof: Roof, element_scale: float = 1.0) -> float:
    """The least time of operators that run one after another."""
    return sum(bound_of(operator, roof, element_scale).us for operator in operators)
