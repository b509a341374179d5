"""The script that a worker process runs: limits on itself first, then whatever the parent asks.

Run by path, not by `-m`: hasten then needs no place on the new interpreter's path before the parent's own `sys.path`
has arrived. It imports only what a bare interpreter starts quickly with.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
import time

MARK = "HASTEN_WORKER"


def main() -> None:
    requests, replies, parent = (int(argument) for argument in sys.argv[1:4])
    for channel in (requests, replies):
        os.set_inheritable(channel, False)  # else a grandchild holds it open and hides that this worker died
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    watch(parent, requests)
    reader = os.fdopen(requests, "rb")
    line = reader.readline()
    if not line:
        return
    start = json.loads(line)
    if start["cpus"]:
        os.sched_setaffinity(0, start["cpus"])
    if start["nice"]:
        os.nice(start["nice"])
    sys.path[:] = start["sys_path"]
    # OpenVINO and NNCF report from the moment of import, unless the package that does it cannot be imported.
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]

    from hasten.isolate.serve import serve

    serve(reader, replies)


def watch(parent: int, requests: int) -> None:
    """Leave a process behind that kills this worker and all it started once the parent is gone, however it went.

    PR_SET_PDEATHSIG would do less: it fires when the parent's *thread* ends, and it spares grandchildren. Forking is
    safe here and only here, while this interpreter has one thread and nothing loaded; twice, so that user code which
    waits for all its children does not wait for this one.
    """
    worker = os.getpid()
    first = os.fork()
    if first:
        os.waitpid(first, 0)
        return
    try:
        os.setsid()
        if os.fork():
            return
        os.chdir("/")
        poll = select.poll()
        poll.register(requests, 0)  # hang-up alone: the write end is closed, or died with the parent
        keep = {requests}
        try:
            alive = os.pidfd_open(parent)  # also sees a parent whose forked children still hold the write end
            poll.register(alive, select.POLLIN)
            keep.add(alive)
        except OSError:
            pass
        low = 0
        for kept in sorted(keep):  # stderr and the replies, above all: they must end with the worker
            os.closerange(low, kept)
            low = kept + 1
        os.closerange(low, os.sysconf("SC_OPEN_MAX"))
        poll.poll()
        kill_group(worker)
        kill_marked(os.environ.get(MARK, ""))
    finally:
        os._exit(0)


def kill_group(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except OSError:
        return


def kill_marked(mark: str) -> None:
    """Kill whatever inherited this worker's mark in its environment: also what left the group or the session."""
    wanted = f"{MARK}={mark}".encode()
    for _ in range(3):  # a process may fork while we look
        found = False
        for entry in os.listdir("/proc"):
            if entry.isdigit() and int(entry) != os.getpid() and wanted in environment(entry):
                try:
                    os.kill(int(entry), signal.SIGKILL)
                except OSError:
                    continue
                found = True
        if not found:
            return


def environment(pid: str) -> list[bytes]:
    """What a process was started with; empty for the kernel's own, for strangers' and for what has ended.

    Between exec and the first instruction it reads as empty too, for a moment: then we look again.
    """
    for _ in range(20):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                read = file.read()
            if read or not os.readlink(f"/proc/{pid}/exe"):
                return read.split(b"\0")
        except OSError:
            return []
        time.sleep(0.001)
    return []


if __name__ == "__main__":
    main()
