"""How much memory a process tree holds, and how to cap it: a cgroup v2 where one can be made, else samples."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Iterable
from pathlib import Path

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_numbers = itertools.count()


def process_tree(pid: int) -> list[int]:
    """A process and its descendants.

    Read straight from /proc because it is read beside a measurement: psutil finds children by reading every process
    of the machine. Even so it costs 10 us a thread, against 11 us a process for `resident_bytes`.
    """
    found: list[int] = []
    waiting = [pid]
    while waiting:
        process = waiting.pop()
        found.append(process)
        with contextlib.suppress(OSError):  # it, or one of its threads, ended meanwhile
            for thread in os.listdir(f"/proc/{process}/task"):
                with open(f"/proc/{process}/task/{thread}/children", "rb") as file:
                    waiting.extend(map(int, file.read().split()))
    return found


def resident_bytes(pids: Iterable[int]) -> int:
    """Resident memory of these processes, those that are gone left out; what several share is counted for each."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/statm", "rb") as file:
            total += int(file.read().split()[1]) * PAGE_BYTES
    return total


def kernel_kills() -> int:
    """How many processes the kernel has killed for want of memory since boot; 0 where it does not tell."""
    with contextlib.suppress(OSError), open("/proc/vmstat") as file:
        for line in file:
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


class Cgroup:
    """A cgroup v2 of our own with a memory limit; the kernel kills all that is in it at once when it is exceeded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, memory_bytes: int, own: Path | None = None) -> Cgroup | None:
        """A child of this process's cgroup, or a sibling of it where only that is possible; `None` where neither is.

        A cgroup that holds processes cannot hand the memory controller down (except the root), so under systemd the
        sibling is the usual case. It is not taken if this process is itself limited: that would escape the limit.
        """
        own = own or own_cgroup()
        if own is None:
            return None
        for parent in (own, own.parent):
            if parent == own.parent and _is_limited(own):
                continue
            path = parent / f"hasten-{os.getpid()}-{next(_numbers)}"
            try:
                if "memory" not in (parent / "cgroup.subtree_control").read_text().split():
                    continue
                path.mkdir()
            except OSError:
                continue
            group = cls(path)
            try:
                (path / "memory.max").write_text(str(memory_bytes))
                (path / "memory.oom.group").write_text("1")
                with contextlib.suppress(OSError):  # absent without swap accounting
                    (path / "memory.swap.max").write_text("0")
                return group
            except OSError:
                group.remove()
        return None

    def add(self, pid: int) -> bool:
        try:
            (self.path / "cgroup.procs").write_text(str(pid))
        except OSError:
            return False
        return True

    def exceeded(self) -> bool:
        with contextlib.suppress(OSError, ValueError):
            events = dict(line.split() for line in (self.path / "memory.events").read_text().splitlines())
            return int(events.get("oom_kill", 0)) > 0
        return False

    def peak_bytes(self) -> int | None:
        with contextlib.suppress(OSError, ValueError):
            return int((self.path / "memory.peak").read_text())
        return None

    def remove(self) -> None:
        """Kill what is left inside, and take the folder away; a cgroup that will not go is left to the system."""
        with contextlib.suppress(OSError):
            (self.path / "cgroup.kill").write_text("1")
        for _ in range(20):
            with contextlib.suppress(OSError):
                self.path.rmdir()
            if not self.path.exists():
                return
            time.sleep(0.005)


def own_cgroup() -> Path | None:
    """Where this process sits in the unified hierarchy; `None` without one that controls memory."""
    try:
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
        mount = next(Path(fields[1]) for fields in mounts if fields[2] == "cgroup2")
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        own = mount / next(line[3:] for line in lines if line.startswith("0::")).lstrip("/")
        return own if "memory" in (own / "cgroup.controllers").read_text().split() else None
    except (OSError, StopIteration, IndexError):
        return None


def _is_limited(group: Path) -> bool:
    for name in ("memory.max", "memory.high", "cpu.max"):
        with contextlib.suppress(OSError):
            if not (group / name).read_text().startswith("max"):
                return True
    return False
