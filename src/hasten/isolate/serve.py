"""The worker's side of the channel: answer calls one after the other until told to stop."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import threading
import traceback
from typing import Any, BinaryIO

from hasten.errors import HastenError
from hasten.isolate import messages
from hasten.isolate.limits import WorkerFailed
from hasten.isolate.resolve import resolve
from hasten.isolate.scope import Scope


def serve(requests: BinaryIO, replies: int) -> None:
    faulthandler.enable()  # a crash in native code leaves the Python stack on stderr
    lock = threading.Lock()
    number = 0

    def send(message: dict[str, Any]) -> None:
        line = memoryview(messages.encode({"call": number, **message}))
        with lock:
            while line:
                line = line[os.write(replies, line) :]

    scope = Scope(lambda fraction, text: send({"progress": [fraction, text]}))
    for line in requests:
        (request,) = messages.Decoder().feed(line)
        if "target" not in request:
            break
        number = request["call"]
        answer = _answer(request["target"], request["payload"], scope)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # user code may have closed or replaced it
                stream.flush()
        try:
            send({**answer, "peak": peak_memory_bytes()})
        except (TypeError, ValueError, RecursionError) as error:
            reason = f"it returned what JSON cannot carry: {error}"
            send({"error": reason, "peak": peak_memory_bytes()})
        del answer
    scope.state.clear()


def _answer(target: str, payload: Any, scope: Scope) -> dict[str, Any]:
    try:
        return {"value": resolve(target)(payload, scope)}
    except HastenError as error:
        if error.__cause__ is not None:
            traceback.print_exc()
        return {"raised": describe(error)}
    except Exception as error:
        traceback.print_exc()
        text = (str(error).strip().splitlines() or [""])[0][:500]
        return {"error": f"{type(error).__name__}: {text}" if text else type(error).__name__}


def describe(error: HastenError) -> dict[str, Any]:
    """A `HastenError` as JSON: its classes, most derived first, so that the parent finds the nearest that it knows."""
    classes = [f"{kind.__module__}:{kind.__qualname__}" for kind in type(error).__mro__]
    described: dict[str, Any] = {"classes": classes} | {
        key: str(getattr(error, key)) for key in ("cause", "fix", "command")
    }
    if isinstance(error, WorkerFailed):
        described |= {"target": error.target, "outcome": vars(error.outcome)}
    return described


def peak_memory_bytes() -> int | None:
    """The high-water mark of this process's resident memory (VmHWM: ru_maxrss would include the parent's at exec)."""
    try:
        with open("/proc/self/status") as file:
            for line in file:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None
