"""What a container allows: cores and memory by its control group, version 1 or 2."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

UNLIMITED = 1 << 60
"""Version 1 writes "no limit" as a number near 2^63."""


@dataclass(frozen=True)
class Quota:
    """`cpus` is processor time per time (1.5 is one and a half cores); None means no limit."""

    cpus: float | None = None
    memory_bytes: int | None = None


def quota(root: Path = Path("/")) -> Quota:
    """The tightest limits on this process, of its own control group and of all above it. `root` is for tests."""
    cpus: list[float] = []
    memory: list[int] = []
    for folder in _folders(root, ""):
        cpus += _cpu_v2(_text(folder / "cpu.max"))
        memory += _bytes(_text(folder / "memory.max")) + _bytes(_text(folder / "memory.high"))
    for folder in _folders(root, "cpu"):
        cpus += _cpu_v1(_text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us"))
    for folder in _folders(root, "memory"):
        memory += _bytes(_text(folder / "memory.limit_in_bytes"))
    return Quota(min(cpus, default=None), min(memory, default=None))


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """The control group's folder of this process and those above it, for a controller of version 1 or "" for 2."""
    mounts = (
        [root / "sys/fs/cgroup", root / "sys/fs/cgroup/unified"]
        if not controller
        else [path for path in (root / "sys/fs/cgroup").glob(f"*{controller}*") if controller in path.name.split(",")]
    )
    path = ""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        names, _, where = rest.partition(":")
        if controller in names.split(","):
            path = where.strip("/")
    for mount in mounts:
        # Inside a container the path may be the host's, which does not exist here: then the mount's root is ours.
        inside = mount / path if path and ".." not in path and (mount / path).is_dir() else mount
        while True:
            yield inside
            if inside == mount:
                break
            inside = inside.parent


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _cpu_v2(text: str) -> list[float]:
    fields = text.split()
    if len(fields) == 2 and fields[0].isdigit() and fields[1].isdigit() and int(fields[1]) > 0:
        return [int(fields[0]) / int(fields[1])]
    return []


def _cpu_v1(quota_us: str, period_us: str) -> list[float]:
    try:
        allowed, period = int(quota_us), int(period_us)
    except ValueError:
        return []
    return [allowed / period] if allowed > 0 and period > 0 else []


def _bytes(text: str) -> list[int]:
    text = text.strip()
    return [int(text)] if text.isdigit() and 0 < int(text) < UNLIMITED else []
