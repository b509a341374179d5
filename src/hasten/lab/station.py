"""A station: a worker with one variant opened in it, ready to run rounds; a contestant of a race."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from hasten.costs.tariff import Tariff
from hasten.goal import Goal
from hasten.isolate import Worker

RESIDENT = frozenset({"peak_memory_mb", "size_mb"})
"""Figures that belong to a process as a whole and not to a round."""
OPEN_S = 300.0
ROUND_LIMIT_S = 300.0


@dataclass
class Station:
    """`rounds` keeps every raw answer since it was opened; a round takes the first `limit` samples of the scene (None
    is all), `repeat` times. A context: leaving it closes the worker.
    """

    name: str
    worker: Worker
    opened: Mapping[str, Any]
    goal: Goal
    tariff: Tariff
    size_bytes: int
    repeat: int = 1
    limit: int | None = None
    rounds: list[Mapping[str, Any]] = field(default_factory=list)

    @classmethod
    def open(
        cls,
        name: str,
        worker: Worker,
        payload: Mapping[str, Any],
        goal: Goal,
        tariff: Tariff,
        size_bytes: int,
        repeat: int = 1,
        limit: int | None = None,
    ) -> Station:
        """Load and warm up the variant of `payload` (see `measure.bench.open`); a failure closes the worker."""
        try:
            opened = worker.call("hasten.measure.bench:open", {**payload, "limit": limit}, OPEN_S)
        except BaseException:
            worker.close()
            raise
        return cls(name, worker, opened, goal, tariff, size_bytes, repeat, limit)

    def lengthen(self, samples: int, seconds: float) -> None:
        """Let a round take up to `samples` of the scene, as many as fit into `seconds` at the speed of warming up."""
        if self.limit is not None:
            fit = int(self.limit * seconds / max(self.opened["round_s"], 1e-9))
            self.limit = max(self.limit, min(samples, fit))

    def round(self) -> float:
        """Run one round and return the goal's figure for it (throughput, where the goal is no matter of rounds)."""
        answer = self.worker.call(
            "hasten.measure.bench:round", {"repeat": self.repeat, "limit": self.limit}, ROUND_LIMIT_S
        )
        self.rounds.append(answer)
        figure = "throughput_per_s" if self.goal.figure in RESIDENT else self.goal.figure
        return self.tariff.figure(figure, answer)

    def latencies(self) -> list[float]:
        """Milliseconds of each sample of the scene, one at a time."""
        answer = self.worker.call("hasten.measure.bench:round", {"scenario": "single-stream"}, ROUND_LIMIT_S)
        return list(answer["latencies_ms"])

    def outputs(self, indices: Sequence[int], path: Path, seconds: float | None = None) -> int:
        """Save the ordered outputs of these samples to `path`; with `seconds`, of as many as fit. How many they are."""
        payload = {"indices": list(indices), "path": str(path), "seconds": seconds}
        return int(self.worker.call("hasten.measure.bench:outputs", payload, None)["count"])

    def operators(self) -> list[dict[str, Any]]:
        answer: list[dict[str, Any]] = self.worker.call("hasten.measure.bench:operators", {}, ROUND_LIMIT_S)
        return answer

    def resident(self, figure: str) -> float:
        """Megabytes of the model's files, or of the worker at its peak."""
        return (self.size_bytes if figure == "size_mb" else self.worker.peak_memory_bytes or 0) / 1e6

    def __enter__(self) -> Station:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.worker.close()
