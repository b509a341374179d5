"""Worker functions that do what real runtimes have been seen to do."""

from __future__ import annotations

import ctypes
import math
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

from hasten.errors import Failed, HastenError, InvalidInput
from hasten.isolate import Limits, Scope, Worker, run

SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]


class Private(HastenError):
    """A class that the parent has not loaded."""


def echo(payload: Any, scope: Scope) -> Any:
    return payload


def strange_floats(payload: Any, scope: Scope) -> Any:
    assert math.isnan(payload["nan"]), payload
    return {**payload, "minus": -math.inf}


def remember(payload: Any, scope: Scope) -> Any:
    scope.state.setdefault("seen", []).append(payload)
    return scope.state["seen"]


def report_progress(payload: Any, scope: Scope) -> Any:
    scope.progress(0.5, "half way")
    scope.progress(None, "somewhere")


def late_progress(payload: Any, scope: Scope) -> Any:
    """Reports after it has answered, far more than a pipe holds."""

    def chatter() -> None:
        for _ in range(5_000):
            scope.progress(0.1, "late" * 20)

    threading.Thread(target=chatter, daemon=True).start()


def describe_process(payload: Any, scope: Scope) -> Any:
    return {
        "pid": os.getpid(),
        "cpus": sorted(os.sched_getaffinity(0)),
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "cwd": os.getcwd(),
        "path": sys.path,
        "session": os.getsid(0),
        "nice": os.nice(0),
        "heavy": sorted({"numpy", "onnx", "onnxruntime", "openvino", "torch"} & set(sys.modules)),
    }


def fault(payload: Any, scope: Scope) -> Any:
    ctypes.string_at(0)


def signal_itself(payload: Any, scope: Scope) -> Any:
    signal.signal(payload, signal.SIG_DFL) if payload != signal.SIGKILL else None
    os.kill(os.getpid(), payload)


def interrupt_itself(payload: Any, scope: Scope) -> Any:
    os.kill(os.getpid(), signal.SIGINT)
    return "still here"


def hang(payload: Any, scope: Scope) -> Any:
    scope.progress(None, "hanging")
    while True:
        time.sleep(60)


def hang_holding_the_interpreter(payload: Any, scope: Scope) -> Any:
    ctypes.PyDLL(None).sleep(600)


def allocate_without_bound(payload: Any, scope: Scope) -> Any:
    kept = []
    while True:
        kept.append(b"x" * (16 << 20))


def allocate(payload: Any, scope: Scope) -> Any:
    return len(b"x" * payload)


def allocate_in_a_child(payload: Any, scope: Scope) -> Any:
    code = "kept = []\nwhile True: kept.append(b'x' * (16 << 20))"
    subprocess.run([sys.executable, "-c", code], check=True)


def garbage_on_stdout(payload: Any, scope: Scope) -> Any:
    print("printed by Python")
    sys.stdout.flush()
    os.write(1, b"\xff\x00{]\n" * 50_000 + b"written by native code\n")
    os.write(2, b"the end\n")
    return "answer"


def close_streams(payload: Any, scope: Scope) -> Any:
    os.close(1)
    os.close(2)
    sys.stdout.close()
    sys.stderr = None
    return "answer"


def close_every_descriptor(payload: Any, scope: Scope) -> Any:
    os.closerange(3, 256)
    time.sleep(600)


def scribble_on_every_descriptor(payload: Any, scope: Scope) -> Any:
    for descriptor in range(3, 32):
        try:
            os.write(descriptor, b"\n[1, 2\n\xfe nonsense \n[]\n7\n")
        except OSError:
            continue
    return "answer"


def exit_early(payload: Any, scope: Scope) -> Any:
    os._exit(payload)


def leave_by_sys_exit(payload: Any, scope: Scope) -> Any:
    sys.exit(3)


def raise_invalid(payload: Any, scope: Scope) -> Any:
    raise InvalidInput("the cause", "the fix", "the command")


def raise_private(payload: Any, scope: Scope) -> Any:
    raise Private("the cause", "the fix", "the command")


def raise_chained(payload: Any, scope: Scope) -> Any:
    try:
        int("fourteen")
    except ValueError as error:
        raise Failed("that is no number") from error


def raise_other(payload: Any, scope: Scope) -> Any:
    raise ValueError("seven is not a size\nand more lines")


def recurse(payload: Any, scope: Scope) -> Any:
    return recurse(payload, scope)


def return_a_set(payload: Any, scope: Scope) -> Any:
    return {1, 2}


def return_endless_nesting(payload: Any, scope: Scope) -> Any:
    nested: list[Any] = []
    nested.append(nested)
    return nested


def return_too_much(payload: Any, scope: Scope) -> Any:
    return "x" * (65 << 20)


def start_a_child(payload: Any, scope: Scope) -> Any:
    """Returns the child's id; `payload` is whether it leaves the worker's session."""
    return subprocess.Popen(SLEEPER, start_new_session=bool(payload)).pid


def start_a_child_and_crash(payload: Any, scope: Scope) -> Any:
    scope.progress(None, str(start_a_child(payload, scope)))
    os.kill(os.getpid(), signal.SIGKILL)


def fork_and_die(payload: Any, scope: Scope) -> Any:
    """The forked child inherits the message channel, so that no end of file is ever seen."""
    if os.fork() == 0:
        time.sleep(600)
    os._exit(5)


def wait_for_all_children(payload: Any, scope: Scope) -> Any:
    try:
        os.wait()
    except ChildProcessError:
        return "none left"


def run_inner(payload: Any, scope: Scope) -> Any:
    return run("misbehaving:" + payload["function"], payload["payload"])


def hold_inner(payload: Any, scope: Scope) -> Any:
    scope.state["inner"] = Worker(Limits())
    return scope.state["inner"].pid
