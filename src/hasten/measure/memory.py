"""The resident memory of this process: now, and at its peak since a moment of one's choosing."""

from __future__ import annotations

from pathlib import Path

_PROC = Path("/proc/self")


def current_bytes(proc: Path = _PROC) -> int:
    """Resident memory now."""
    return _status(proc, "VmRSS")


def peak_bytes(proc: Path = _PROC) -> int:
    """The most resident memory since the process started, or since `reset_peak` last succeeded."""
    return _status(proc, "VmHWM")


def reset_peak(proc: Path = _PROC) -> bool:
    """Start the peak anew from the present size. False where the system does not let us; the old peak then stands."""
    try:
        (proc / "clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _status(proc: Path, field: str) -> int:
    """A size of /proc/self/status in bytes; 0 on a system that has no such file or field."""
    try:
        text = (proc / "status").read_text()
    except OSError:
        return 0
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    return 0
