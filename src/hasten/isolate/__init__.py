"""Worker processes: start one, call a function in it under limits, and survive whatever it does."""

from hasten.isolate.limits import Limits, Outcome, WorkerFailed
from hasten.isolate.resolve import resolve
from hasten.isolate.scope import Scope
from hasten.isolate.supervise import Worker, run

__all__ = ["Limits", "Outcome", "Scope", "Worker", "WorkerFailed", "resolve", "run"]
