"""What executes a model: the protocol, and the runtimes found through the entry-point group `hasten.runtimes`."""

from hasten.runtimes.base import Availability, OperatorTime, Runtime, Session, Settings, all_runtimes, runtime

__all__ = ["Availability", "OperatorTime", "Runtime", "Session", "Settings", "all_runtimes", "runtime"]
