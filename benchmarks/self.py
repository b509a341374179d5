"""The project's own costs: `python -m benchmarks.self [--quick] [--only NAME] [--json FILE]`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common import ROOT, Group, Run, Taken, arguments, at_most, main
from hasten.errors import Failed
from hasten.measure.statistics import percentile_interval

OPTIMIZE = """
import resource
from hasten import api
from hasten.demo import vision
demo = vision.demo()
api.optimize(demo.model, demo.data, metric=demo.metric, max_drop=demo.max_drop, budget={budget})
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def install(run: Run) -> Mapping[str, Taken]:
    """What a new virtual environment with the core alone takes on disk."""
    constraints = ROOT / "constraints.txt"
    pins = ["-c", str(constraints)] if constraints.is_file() else []
    with tempfile.TemporaryDirectory(prefix="hasten-install-") as folder:
        _done([sys.executable, "-m", "venv", folder])
        _done([f"{folder}/bin/python", "-m", "pip", "install", "--quiet", *pins, str(_sources(Path(folder)))])
        listed = _done([f"{folder}/bin/python", "-m", "pip", "list", "--format=freeze"]).splitlines()
        shutil.rmtree(Path(folder) / "sources")
        size = used_bytes(Path(folder)) / 1e6
    pinned = "pinned" if pins else "newest"
    how = f"a new virtual environment (pip included) with the core and {len(listed)} packages, {pinned} versions"
    return {"core.install_mb": Taken(size, how)}


def help_time(run: Run) -> Mapping[str, Taken]:
    command = [str(Path(sys.executable).parent / "hasten"), "--help"]
    seconds = _timed(lambda: _done(command), run.pick(20, 10))
    return {"cli.help_s": _median(seconds, "runs of hasten --help after a first one")}


def parent_memory(run: Run) -> Mapping[str, Taken]:
    budget = run.pick(90, 25)
    peak = int(_done([sys.executable, "-c", OPTIMIZE.format(budget=budget)]).split()[-1])
    how = f"peak resident memory of the process that optimised the demo for {budget} s; its workers are not counted"
    return {"parent.peak_memory_mb": Taken(peak * 1024 / 1e6, how)}


def worker_overhead(run: Run) -> Mapping[str, Taken]:
    from hasten.isolate import run as in_worker

    def once() -> None:
        in_worker("benchmarks.self:nothing", {})

    return {"worker.overhead_s": _median(_timed(once, run.pick(20, 8)), "workers from spawn to answer and exit")}


def nothing(payload: dict[str, Any], scope: Any) -> None:
    """Worker function: does nothing."""


def used_bytes(folder: Path) -> int:
    """What the files under `folder` take on disk, as `du` counts it."""
    seen, total = set(), 0
    for path in folder.rglob("*"):
        status = path.lstat()
        if (status.st_dev, status.st_ino) not in seen:
            seen.add((status.st_dev, status.st_ino))
            total += status.st_blocks * 512
    return total


def _sources(folder: Path) -> Path:
    """A copy of what is built, so that building leaves nothing in the repository."""
    copy = folder / "sources"
    ignored = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", "benchmarks", "tests")
    shutil.copytree(ROOT, copy, ignore=ignored)
    return copy


def _timed(action: Callable[[], Any], count: int) -> list[float]:
    action()
    found = []
    for _ in range(count):
        start = time.perf_counter()
        action()
        found.append(time.perf_counter() - start)
    return found


def _median(seconds: Sequence[float], what: str) -> Taken:
    interval = percentile_interval(seconds, 0.5)
    how = f"median of {len(seconds)} {what}; {min(seconds):.3f} to {max(seconds):.3f} s"
    return Taken(median(seconds), how, (interval.low, interval.high))


def _done(command: Sequence[str]) -> str:
    """The command's output. Raises `Failed` with its last line of complaint."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise Failed(f"{' '.join(command[:4])} ended with status {done.returncode}: {last}")
    return done.stdout


GROUPS = [
    Group({"core.install_mb": "MB"}, install, {"core.install_mb": at_most(850)}),
    Group({"cli.help_s": "s"}, help_time, {"cli.help_s": at_most(0.3)}),
    Group({"parent.peak_memory_mb": "MB"}, parent_memory, {"parent.peak_memory_mb": at_most(2000)}),
    Group({"worker.overhead_s": "s"}, worker_overhead),
]

if __name__ == "__main__":
    sys.exit(main("self", GROUPS, arguments("self", None)))
