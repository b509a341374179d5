"""What executes a model: the protocol, and the runtimes found through the entry-point group `hasten.runtimes`."""

from hasten.runtimes.base import (
    DEFAULT_RUNTIMES,
    Availability,
    OperatorTime,
    Runtime,
    Session,
    Settings,
    all_runtimes,
    devices_of,
    runtime,
)

__all__ = [
    "DEFAULT_RUNTIMES",
    "Availability",
    "OperatorTime",
    "Runtime",
    "Session",
    "Settings",
    "all_runtimes",
    "devices_of",
    "runtime",
]
