"""How much power a busy core draws, as published: thermal design power over cores."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median

from hasten.costs.tables import table
from hasten.measurement import Figure

FAMILIES = ("Intel Xeon", "AMD EPYC", "AWS Graviton", "Intel Core", "AMD Ryzen")
UNNAMED = {"unknown", ""}

_ARM_PARTS = {"0xd0c": "AWS Graviton2", "0xd40": "AWS Graviton3", "0xd4f": "AWS Graviton4"}
"""Arm's part numbers of Neoverse N1, V1 and V2, which are these chips on Amazon EC2 (and others elsewhere)."""


@dataclass(frozen=True)
class Processor:
    """One row of the table. `tdp_w` and `cores` are for one socket."""

    name: str
    tdp_w: float
    cores: int
    source: str
    date: str

    @property
    def watts_per_core(self) -> float:
        return self.tdp_w / self.cores


@cache
def processors() -> tuple[Processor, ...]:
    return tuple(
        Processor(row["name"], float(row["tdp_w"]), int(row["cores"]), row["source"], row["date"])
        for row in table("power")
    )


def plain_name(name: str) -> str:
    """The processor's name without marks, clock and core count: what the tables use.

    >>> plain_name("Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz")
    'Intel Xeon Platinum 8375C'
    >>> plain_name("AMD EPYC 7763 64-Core Processor")
    'AMD EPYC 7763'
    >>> plain_name("12th Gen Intel(R) Core(TM) i7-12700K")
    'Intel Core i7-12700K'
    """
    name = re.sub(r"\((?:R|TM|C)\)", "", name, flags=re.IGNORECASE)
    name = re.sub(r"\s*@.*$", "", name)
    name = re.sub(r"\b\d+(?:st|nd|rd|th) Gen\b", "", name)
    name = re.sub(r"\s+with Radeon.*$", "", name)
    name = re.sub(r"\b\d+-Core\b|\bProcessor\b|\bCPU\b", "", name)
    return " ".join(name.split())


def find(name: str) -> Processor | None:
    """The processor called `name` in /proc/cpuinfo's words, or None where the table does not have it."""
    plain = plain_name(name).casefold()
    return next((row for row in processors() if row.name.casefold() == plain), None)


def watts_per_core(name: str) -> Figure:
    """Watts per physical core of the processor `name` at its thermal design power.

    A processor that the table does not have gets the median of its family's rows, or of all rows, and the source says
    so. The package's power is shared evenly: memory, disks and fans are not in it.
    """
    found = find(name)
    if found is not None:
        return Figure(
            found.watts_per_core,
            "W",
            f"published: {found.tdp_w:g} W TDP over {found.cores} cores of {found.name} ({found.source}, {found.date})",
        )
    plain = plain_name(name)
    family = next((f for f in FAMILIES if plain.casefold().startswith(f.casefold())), None)
    rows = [row for row in processors() if family is None or row.name.startswith(family)]
    watts = sorted(row.watts_per_core for row in rows)
    label = "the processor has no name here" if plain in UNNAMED else f"{plain} is not in the table"
    return Figure(
        median(watts),
        "W",
        f"estimated: median TDP per core of the {len(rows)} {family or 'listed'} processors, because {label} "
        f"(they range from {watts[0]:.1f} to {watts[-1]:.1f} W)",
    )


def processor_name(cpuinfo: str, vendor: str = "") -> str:
    """The processor's name out of the text of /proc/cpuinfo; `vendor` is the machine's maker (DMI's sys_vendor)."""
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
        if key.strip() == "CPU part" and "amazon" in vendor.casefold() and value.strip() in _ARM_PARTS:
            return _ARM_PARTS[value.strip()]
    return "unknown"


def threads_per_core(cpuinfo: str) -> int:
    """Hardware threads per core that /proc/cpuinfo admits to; 1 where it does not tell."""
    found: dict[str, int] = {}
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("siblings", "cpu cores") and value.strip().isdigit():
            found.setdefault(key.strip(), int(value))
    return max(1, found.get("siblings", 1) // max(1, found.get("cpu cores", 1)))


def here(proc: Path = Path("/proc"), dmi: Path = Path("/sys/class/dmi/id")) -> tuple[str, int]:
    """This machine's processor name and its hardware threads per core."""

    def read(path: Path) -> str:
        try:
            return path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    cpuinfo = read(proc / "cpuinfo")
    return processor_name(cpuinfo, read(dmi / "sys_vendor")), threads_per_core(cpuinfo)
