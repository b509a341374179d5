"""What hasten can use here: the device with its measured limits, the runtimes, the levers, the energy meter."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from hasten.device import Device
from hasten.diagnose.device import device as measured_device
from hasten.diagnose.device import machine
from hasten.diagnose.notes import look, notes
from hasten.intake.kinds import KINDS, Kind
from hasten.runtimes import devices_of

SCHEMA = "hasten.doctor/1"

Progress = Callable[[float | None, str], None]


@dataclass(frozen=True)
class RuntimeRow:
    """A registered runtime. Where it is not `usable`, `reason` says why and `command` changes it."""

    name: str
    usable: bool
    version: str = ""
    reason: str = ""
    command: str = ""
    accepts: tuple[str, ...] = ()
    precisions: tuple[str, ...] = ()
    package: str = ""
    devices: tuple[DeviceRow, ...] = ()


@dataclass(frozen=True)
class DeviceRow:
    """A device beside the CPU that a runtime knows. Where it is not `usable`, `reason` and `command` are as above."""

    name: str
    usable: bool
    reason: str = ""
    command: str = ""


@dataclass(frozen=True)
class LeverRow:
    """A registered lever and what it needs; where it cannot be loaded, `reason` says why."""

    name: str
    usable: bool
    needs: tuple[str, ...] = ()
    reason: str = ""
    package: str = ""


@dataclass(frozen=True)
class KindRow:
    """A kind of models that can be brought. Where it is not `usable`, `reason` says why and `command` changes it."""

    name: str
    usable: bool
    reason: str = ""
    command: str = ""
    package: str = ""


@dataclass(frozen=True)
class Doctor:
    """`energy` says how energy will be found; `energy_measured` whether a meter can be read."""

    device: Device
    runtimes: tuple[RuntimeRow, ...]
    levers: tuple[LeverRow, ...]
    kinds: tuple[KindRow, ...]
    energy_measured: bool
    energy: str
    notes: tuple[str, ...]
    python: str
    system: str

    @property
    def devices(self) -> tuple[DeviceRow, ...]:
        """The devices beside the CPU, of the runtimes that can be used."""
        return tuple(device for row in self.runtimes if row.usable for device in row.devices)

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA} | asdict(self) | {"device": self.device.to_json()}


def doctor(
    cpus: tuple[int, ...] | None = None,
    refresh: bool = False,
    quick: bool = False,
    *,
    on_progress: Progress | None = None,
) -> Doctor:
    """Examine this machine. Limits are measured where they are not known yet (about 20 s; `quick` about 5)."""
    bare = machine(cpus)
    seen = look(bare)
    found = measured_device(cpus, refresh, quick, on_progress=on_progress)
    meter, energy = _energy()
    return Doctor(
        found,
        tuple(runtime_row(entry) for entry in _registered("hasten.runtimes")),
        tuple(lever_row(entry) for entry in _registered("hasten.levers")),
        tuple(kind_row(kind) for kind in KINDS),
        meter,
        energy,
        notes(found, seen),
        platform.python_version(),
        f"{platform.system()} {platform.release()} {platform.machine()}",
    )


def runtime_row(entry: EntryPoint) -> RuntimeRow:
    """What a runtime says of itself. One that cannot even be asked is a row with the reason."""
    bare = RuntimeRow(entry.name, False, package=_package(entry))
    try:
        runtime = entry.load()()
        answer = runtime.availability()
        devices = devices_of(runtime)
    except Exception as error:  # a stranger's plugin must not stop the examination
        return replace(bare, reason=f"the plugin {entry.value} is broken: {_one_line(error)}")
    return replace(
        bare,
        usable=answer.usable,
        version=answer.version,
        reason=answer.reason,
        command=answer.command,
        accepts=tuple(sorted(runtime.accepts)),
        precisions=tuple(runtime.precisions),
        devices=tuple(
            DeviceRow(f"{entry.name} on {name}", found.usable, found.reason, found.command)
            for name, found in devices.items()
        ),
    )


def lever_row(entry: EntryPoint) -> LeverRow:
    """Whether a lever's plugin loads, and what it needs."""
    bare = LeverRow(entry.name, False, package=_package(entry))
    try:
        lever = entry.load()()
        return replace(bare, usable=True, needs=tuple(sorted(str(need) for need in lever.needs)))
    except Exception as error:  # a stranger's plugin must not stop the examination
        return replace(bare, reason=f"the plugin {entry.value} is broken: {_one_line(error)}")


def kind_row(kind: Kind) -> KindRow:
    """Whether all that a kind of models takes is installed."""
    missing = kind.missing
    if not missing:
        return KindRow(kind.name, True)
    return KindRow(kind.name, False, f"not installed: {', '.join(missing)}", kind.command)


def _registered(group: str) -> list[EntryPoint]:
    return sorted(entry_points(group=group), key=lambda entry: entry.name)


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else ""


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]


def _energy() -> tuple[bool, str]:
    from hasten.measure.energy import Meter

    with Meter() as meter:
        pass
    if meter.measured:
        return True, meter.energy.source
    return False, f"{meter.energy.source}; {meter.reason}"
