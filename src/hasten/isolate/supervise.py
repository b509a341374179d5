"""The parent's side of a worker: start it, call functions in it, and tell how a call ended."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from hasten.errors import Failed, HastenError
from hasten.isolate import messages
from hasten.isolate.attend import Attendant
from hasten.isolate.limits import Limits, Outcome, WorkerFailed
from hasten.isolate.memory import Cgroup, kernel_kills
from hasten.isolate.worker import MARK, kill_group, kill_marked
from hasten.paths import cache_dir

Progress = Callable[[float | None, str], None]

GRACE_SECONDS = 2.0
# Read once by each library when it loads; without them a pool is sized to the machine and not to the pinned cores.
THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "RAYON_NUM_THREADS",
)
NO_TELEMETRY = {"ORT_DISABLE_TELEMETRY": "1"}
"""ONNX Runtime reads it when it loads; from 1.32 on nothing later keeps it from leaving a device id behind."""


def compiled() -> str:
    """Where PyTorch keeps compiled kernels: each program is compiled once, and nothing is left in /tmp."""
    return str(cache_dir() / "inductor")


def run(target: str, payload: Any, limits: Limits | None = None, on_progress: Progress | None = None) -> Any:
    """Call `module:function` once, in a fresh worker. Raises as `Worker.call` does."""
    with Worker(limits, on_progress) as worker:
        return worker.call(target, payload)


class Worker:
    """A process of its own that calls functions by name; it starts at once, so several start side by side.

    A call that crashes, runs out of time or out of memory ends the worker. Calls from several threads take turns;
    `close` may come from any thread at any time, and never hangs.
    """

    def __init__(self, limits: Limits | None = None, on_progress: Progress | None = None) -> None:
        self.limits = limits or Limits()
        self._on_progress = on_progress
        self._peak_bytes: int | None = None
        self._calls = 0
        self._over: str | None = None  # why it is over, once it is
        self._closing = False
        self._caller: int | None = None  # the thread whose call is going on
        self._turn = threading.Lock()
        self._ending = threading.RLock()
        self._decoder = messages.Decoder()
        self._kills_before = kernel_kills()
        self._mark = os.urandom(8).hex()
        self._start()

    def _start(self) -> None:
        environment = {"TORCHINDUCTOR_CACHE_DIR": compiled(), **os.environ, **NO_TELEMETRY, MARK: self._mark}
        if self.limits.cpus is not None:
            environment |= dict.fromkeys(THREAD_VARIABLES, str(len(self.limits.cpus)))
        child_requests, self._requests = os.pipe()
        self._replies, child_replies = os.pipe()
        stderr, child_stderr = os.pipe()
        script = os.path.join(os.path.dirname(__file__), "worker.py")
        command = [sys.executable, "-P", script, str(child_requests), str(child_replies), str(os.getpid())]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=child_stderr,
                stderr=child_stderr,
                pass_fds=(child_requests, child_replies),
                start_new_session=True,
                env=environment,
            )
        except OSError as error:
            for descriptor in (self._requests, self._replies, stderr):
                os.close(descriptor)
            raise Failed(f"a worker process cannot be started: {error}", "free memory, processes or files") from error
        finally:
            for descriptor in (child_requests, child_replies, child_stderr):
                os.close(descriptor)
        self.pid = self._process.pid
        os.set_blocking(self._requests, False)
        os.set_blocking(self._replies, False)
        self._pidfd: int | None = None
        with contextlib.suppress(OSError):  # forbidden in some sandboxes; then we look every 50 ms instead
            self._pidfd = os.pidfd_open(self.pid)
        self._cgroup = None if self.limits.memory_bytes is None else Cgroup.create(self.limits.memory_bytes)
        if self._cgroup is not None and not self._cgroup.add(self.pid):
            self._cgroup.remove()
            self._cgroup = None
        watched = self.limits.memory_bytes if self._cgroup is None else None
        self._attendant = Attendant(stderr, self.pid, watched, self._kill)
        here = os.getcwd()
        path = [here if entry == "" else entry for entry in sys.path]
        start = {
            "sys_path": path if here in path else [*path, here],
            "cpus": self.limits.cpus,
            "nice": self.limits.nice,
        }
        self._outbox = json.dumps(start).encode() + b"\n"

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def peak_memory_bytes(self) -> int | None:
        """The largest resident memory seen: of the worker at its last answer, of its tree while a limit is watched."""
        seen = [peak for peak in (self._peak_bytes, self._attendant.peak_bytes) if peak is not None]
        return max(seen, default=None)

    @property
    def stderr(self) -> str:
        """The tail of what the worker wrote on stderr and stdout, tracebacks included."""
        return self._attendant.tail

    @property
    def alive(self) -> bool:
        """Whether further calls can be made."""
        return self._over is None

    def call(self, target: str, payload: Any, seconds: float | None = None) -> Any:
        """Call `target(payload, scope)` in the worker and return what it returned.

        `seconds` overrides the limit for this call. A `HastenError` of the function is raised here as it is;
        anything else that goes wrong raises `WorkerFailed`. Raises `Failed` if the worker has ended before.
        """
        with self._turn:
            if self._over is not None:
                raise Failed(f"the worker has ended: {self._over}", "start another worker")
            self._calls += 1
            request = messages.encode({"call": self._calls, "target": target, "payload": payload})
            limit = self.limits.seconds if seconds is None else seconds
            started = time.monotonic()
            self._caller = threading.get_ident()
            try:
                answer = self._exchange(request, None if limit is None else started + limit)
                if answer is None:
                    status, reason = self._how_it_died()
                    self._end(reason)
            except TimeoutError:
                answer, status, reason = None, "timeout", f"no answer within {limit:g} s"
                self._end(reason)
            except BaseException:
                self._end("interrupted")
                raise
            finally:
                self._caller = None
            if answer is not None:
                self._peak_bytes = max(self._peak_bytes or 0, answer.get("peak") or 0) or None
                if "value" in answer:
                    return answer["value"]
                if "raised" in answer:
                    raise revive(answer["raised"])
                status, reason = "error", str(answer.get("error"))
            seconds_spent = time.monotonic() - started
            raise WorkerFailed(target, Outcome(status, reason, self.stderr, self.peak_memory_bytes, seconds_spent))

    def close(self) -> None:
        """End the worker: in order if it is idle, within two seconds; at once if a call is going on."""
        if not self._turn.acquire(blocking=False):
            self._closing = True
            self._kill()
            # The call that is going on now fails and cleans up; from inside of it (on_progress) nobody can wait.
            if self._caller == threading.get_ident() or not self._turn.acquire(timeout=5):
                return
        try:
            if self._over is None and not self._closing:
                with contextlib.suppress(OSError):
                    os.write(self._requests, self._outbox + messages.encode({"close": True}))
                    self._has_exited(GRACE_SECONDS)
        finally:
            self._end("closed")
            self._turn.release()

    def _exchange(self, request: bytes, deadline: float | None) -> dict[str, Any] | None:
        """Send, and wait for the answer; `None` if the worker died first. Raises `TimeoutError`."""
        outbox = memoryview(self._outbox + request)
        self._outbox = b""
        poll = select.poll()
        poll.register(self._replies, select.POLLIN)
        poll.register(self._requests, select.POLLOUT)
        if self._pidfd is not None:
            poll.register(self._pidfd, select.POLLIN)
        while True:
            wait = None if deadline is None else max(0.0, deadline - time.monotonic())
            if self._pidfd is None:
                wait = 0.05 if wait is None else min(wait, 0.05)
            ready = dict(poll.poll(None if wait is None else wait * 1000))
            # Asked before reading, so that whatever it wrote before it died is read below.
            dead = self._has_exited(0)
            if self._requests in ready:
                try:
                    outbox = outbox[os.write(self._requests, outbox) :]
                except BlockingIOError:
                    pass
                except OSError:
                    outbox = outbox[:0]
                if not outbox:
                    poll.unregister(self._requests)
            at_end = False
            while not at_end:
                try:
                    data = os.read(self._replies, 1 << 20)
                except BlockingIOError:
                    break
                at_end = not data
                for message in self._decoder.feed(data):
                    if message.get("call") != self._calls:
                        continue  # late progress of an earlier call
                    if "progress" not in message:
                        return message
                    if self._on_progress is not None:
                        self._on_progress(*message["progress"])
                if deadline is not None and time.monotonic() >= deadline:
                    break
            if dead or at_end:
                return None
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError

    def _has_exited(self, seconds: float) -> bool:
        """Whether the process has ended, waiting up to `seconds`; leaves it unreaped, so that its id stays its own."""
        if self._pidfd is not None:
            poll = select.poll()
            poll.register(self._pidfd, select.POLLIN)
            return bool(poll.poll(seconds * 1000))
        until = time.monotonic() + seconds
        while True:
            if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                return True
            if time.monotonic() >= until:
                return False
            time.sleep(0.005)

    def _how_it_died(self) -> tuple[str, str]:
        exited = self._has_exited(1)
        limit = self.limits.memory_bytes
        if limit is not None and (self._attendant.exceeded or (self._cgroup is not None and self._cgroup.exceeded())):
            return "memory", f"memory limit of {_size(limit)} exceeded"
        if self._closing:
            return "crashed", "closed during a call"
        if not exited:
            return "crashed", "closed its message channel before answering"
        ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return "crashed", "ended before answering"
        if ended.si_code == os.CLD_EXITED:
            return "crashed", f"exited with status {ended.si_status} before answering"
        if ended.si_status == signal.SIGKILL and kernel_kills() > self._kills_before:
            return "memory", "killed by the kernel, which ran out of memory"
        name = (signal.strsignal(ended.si_status) or "unknown signal").lower()
        return "crashed", f"killed by signal {ended.si_status} ({name})"

    def _kill(self) -> None:
        """Kill the worker's process group. The lock and the unreaped process keep its id from meaning another."""
        with self._ending:
            if self._over is None:
                kill_group(self.pid)

    def _end(self, why: str) -> None:
        """Leave nothing behind: no process, no descriptor, no thread, no cgroup."""
        with self._ending:
            if self._over is not None:
                return
            kill_group(self.pid)
            self._over = why
        kill_marked(self._mark)
        with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the kernel: killed, and gone when it wakes
            self._process.wait(5)
        if self._cgroup is not None:
            self._cgroup.remove()
        self._attendant.end()
        for descriptor in (self._requests, self._replies, self._pidfd):
            if descriptor is not None:
                os.close(descriptor)


def revive(described: dict[str, Any]) -> HastenError:
    """The error that `serve.describe` wrote: of the most derived class that this process has loaded."""
    known = {f"{kind.__module__}:{kind.__qualname__}": kind for kind in _family(HastenError)}
    kind = next((known[name] for name in described["classes"] if name in known), Failed)
    error = kind.__new__(kind)
    HastenError.__init__(error, described["cause"], described["fix"], described["command"])
    if isinstance(error, WorkerFailed):
        error.target, error.outcome = described["target"], Outcome(**described["outcome"])
    return error


def _family(kind: type[HastenError]) -> set[type[HastenError]]:
    return {kind}.union(*(_family(child) for child in kind.__subclasses__()))


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
