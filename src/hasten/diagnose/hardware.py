"""What the operating system says of this machine: processor, cores, caches, instructions that matter, memory."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path

FLAGS = {
    "avx2": "avx2",
    "fma": "fma",
    "f16c": "f16c",
    "avx512f": "avx512f",
    "avx512_vnni": "avx512_vnni",
    "avx_vnni": "avx_vnni",
    "avx512_bf16": "avx512_bf16",
    "avx512_fp16": "avx512_fp16",
    "amx_tile": "amx_tile",
    "amx_bf16": "amx_bf16",
    "amx_int8": "amx_int8",
    "amx_fp16": "amx_fp16",
    "asimd": "neon",
    "neon": "neon",
    "asimddp": "dotprod",
    "asimdhp": "fp16",
    "bf16": "bf16",
    "i8mm": "i8mm",
    "sve": "sve",
    "sve2": "sve2",
    "sme": "sme",
}
"""The kernel's names of instruction sets that decide a model's speed, and the names that are printed."""


def processor(root: Path = Path("/")) -> str:
    """The processor's name. Arm kernels give none: there the device tree or the architecture must do."""
    fields = _cpuinfo(root)
    for key in ("model name", "Model", "Hardware", "cpu model"):
        if fields.get(key):
            return " ".join(fields[key].split())
    try:
        return (root / "proc/device-tree/model").read_text().strip("\0\n ")
    except OSError:
        return f"{platform.machine() or 'unknown'} processor"


def flags(root: Path = Path("/")) -> tuple[str, ...]:
    """Instruction sets that matter, in a fixed order: what may be fast. Only the measured limits say what is."""
    fields = _cpuinfo(root)
    present = set(f"{fields.get('flags', '')} {fields.get('Features', '')}".split())
    return tuple(dict.fromkeys(name for own, name in FLAGS.items() if own in present))


def caches(cpu: int = 0, root: Path = Path("/")) -> dict[str, int]:
    """Bytes of each level that `cpu` sees: L1d, L1i, L2, L3; shared levels are not divided."""
    found: dict[str, int] = {}
    for folder in sorted((root / f"sys/devices/system/cpu/cpu{cpu}/cache").glob("index*")):
        try:
            level = (folder / "level").read_text().strip()
            kind = (folder / "type").read_text().strip()
            size = _size((folder / "size").read_text())
        except (OSError, ValueError):
            continue
        suffix = {"Data": "d", "Instruction": "i"}.get(kind, "")
        found[f"L{level}{suffix}"] = size
    return found


def memory_bytes(root: Path = Path("/")) -> int:
    """Installed memory, before any container's limit."""
    try:
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemTotal:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def siblings(cpus: tuple[int, ...], root: Path = Path("/")) -> Mapping[int, tuple[int, ...]]:
    """For each of `cpus`, the logical cores that share its physical core (itself included)."""
    found = {}
    for cpu in cpus:
        try:
            text = (root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
            found[cpu] = parse_cpus(text)
        except (OSError, ValueError):
            found[cpu] = (cpu,)
    return found


def spread(cpus: tuple[int, ...], count: int, pairs: Mapping[int, tuple[int, ...]]) -> tuple[int, ...]:
    """`count` of `cpus`, whole physical cores before second threads of a core."""
    first = [cpu for cpu in cpus if cpu == min((c for c in pairs.get(cpu, (cpu,)) if c in cpus), default=cpu)]
    rest = [cpu for cpu in cpus if cpu not in first]
    return tuple(sorted((first + rest)[: max(1, count)]))


def parse_cpus(text: str) -> tuple[int, ...]:
    """The kernel's list format: `0-3,8` is 0, 1, 2, 3 and 8. Raises ValueError for anything else."""
    found: list[int] = []
    for part in filter(None, text.strip().split(",")):
        low, _, high = part.partition("-")
        found += range(int(low), int(high or low) + 1)
    return tuple(found)


def _cpuinfo(root: Path) -> dict[str, str]:
    """The first processor's fields."""
    try:
        text = (root / "proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return {}
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key.strip(), value.strip())
    return fields


def _size(text: str) -> int:
    text = text.strip()
    factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
    return int(text.rstrip("KMG")) * factor
