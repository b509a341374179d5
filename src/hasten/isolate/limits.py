"""What a worker may use, and how a call that went wrong ended."""

from __future__ import annotations

import os
from dataclasses import dataclass

from hasten.errors import Failed, InvalidInput


@dataclass(frozen=True)
class Limits:
    """What a worker and every process that it starts may use; `None` means no limit of hasten's own.

    `memory_bytes` is resident memory of the whole process tree; `seconds` is per call; `cpus` are the logical cores
    that the worker is pinned to (thread pools are sized to match); `nice` is added to the worker's niceness.
    """

    memory_bytes: int | None = None
    seconds: float | None = None
    cpus: tuple[int, ...] | None = None
    nice: int = 0

    def __post_init__(self) -> None:
        if self.memory_bytes is not None and self.memory_bytes <= 0:
            raise InvalidInput(f"a memory limit of {self.memory_bytes} bytes leaves no room", "give a positive limit")
        if self.seconds is not None and not self.seconds > 0:
            raise InvalidInput(f"a time limit of {self.seconds} s leaves no time", "give a positive limit")
        if self.cpus is not None:
            allowed = os.sched_getaffinity(0)
            if not self.cpus or not allowed.issuperset(self.cpus):
                raise InvalidInput(
                    f"cores {', '.join(map(str, self.cpus)) or '(none)'} cannot be used by this process",
                    f"choose among {', '.join(map(str, sorted(allowed)))}",
                )


@dataclass(frozen=True)
class Outcome:
    """How a failed call ended. `status` is "error" (the function raised), "crashed", "timeout" or "memory".

    `reason` is one readable line; `stderr` the tail of what the worker wrote; `peak_memory_bytes` the largest
    resident memory that was seen, `None` when nothing was seen; `seconds` how long the call took.
    """

    status: str
    reason: str
    stderr: str = ""
    peak_memory_bytes: int | None = None
    seconds: float = 0.0


FIXES = {
    "memory": "raise the memory limit, or make the job smaller (a smaller batch, shorter inputs)",
    "timeout": "raise the time limit, or make the job smaller",
}


class WorkerFailed(Failed):
    """A call that did not answer, or whose function raised something other than a `HastenError`."""

    def __init__(self, target: str, outcome: Outcome) -> None:
        super().__init__(f"{target} failed in its worker: {outcome.reason}", FIXES.get(outcome.status, ""))
        self.target, self.outcome = target, outcome
