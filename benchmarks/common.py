"""Benchmark results: what a figure is, the environment it was taken in, and the JSON file that keeps it."""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hasten.errors import HastenError
from hasten.measurement import Figure
from hasten.paths import cache_dir

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
DOWNLOADS = "HASTEN_BENCHMARK_DOWNLOADS"
"""Names the folder for what is fetched and may be used again, such as pinned models; it is never a result."""


@dataclass(frozen=True)
class Goal:
    """A bound that the figure should reach: its value, or (`of` = "interval") the worse end of its interval."""

    op: str
    bound: float
    of: str = "value"

    def met(self, value: float, ci95: tuple[float, float] | None) -> bool:
        if self.of == "interval" and ci95 is not None:
            value = ci95[0] if self.op == ">=" else ci95[1]
        return value >= self.bound if self.op == ">=" else value <= self.bound

    def __str__(self) -> str:
        return f"{self.op} {self.bound:g}" + (" (whole interval)" if self.of == "interval" else "")


def at_least(bound: float) -> Goal:
    return Goal(">=", bound)


def at_most(bound: float, of: str = "value") -> Goal:
    return Goal("<=", bound, of)


@dataclass(frozen=True)
class Taken:
    """A figure: its value with a 95% interval where one makes sense, and in words how it was taken.

    `value` is None where it could not be taken; `how` then says why.
    """

    value: float | None
    how: str
    ci95: tuple[float, float] | None = None

    @classmethod
    def of(cls, figure: Figure, how: str) -> Taken:
        return cls(figure.value, how, figure.ci95)


Measure = Callable[["Run"], Mapping[str, Taken]]


@dataclass(frozen=True)
class Group:
    """Figures that one function takes together. `units` and `goals` are by figure name."""

    units: Mapping[str, str]
    measure: Measure
    goals: Mapping[str, Goal] = field(default_factory=dict)

    def wanted(self, only: Sequence[str]) -> bool:
        """Whether one of its figures begins with one of the names in `only`."""
        return not only or any(name.startswith(prefix) for name in self.units for prefix in only)


@dataclass
class Run:
    """One run of a benchmark: how thorough, where its figures go, and what its groups hand on to each other."""

    quick: bool
    exhaustive: bool = False
    shared: dict[str, Any] = field(default_factory=dict)
    target: Path | None = None

    def pick(self, full: Any, quick: Any) -> Any:
        return quick if self.quick else full

    def say(self, text: str) -> None:
        print(f"{datetime.now():%H:%M:%S}  {text}", file=sys.stderr, flush=True)


def arguments(name: str, argv: Sequence[str] | None, *, exhaustive: bool = False) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=f"Take the {name} figures.")
    parser.add_argument("--quick", action="store_true", help="small budgets: shows that it works, not how fast it is")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="figures that begin with NAME")
    parser.add_argument("--json", metavar="FILE", type=Path, help="where the figures go")
    if exhaustive:
        parser.add_argument("--exhaustive", action="store_true", help="redo the exhaustive searches first (an hour)")
    return parser.parse_args(argv)


def main(name: str, groups: Sequence[Group], options: argparse.Namespace) -> int:
    """Take the wanted groups one by one, writing the file after each; the exit status is 0 whatever they find."""
    target = options.json or (None if options.quick else RESULTS / f"{name}.json")
    run = Run(options.quick, getattr(options, "exhaustive", False), target=target)
    known = [figure for group in groups for figure in group.units]
    for prefix in options.only:
        if not any(figure.startswith(prefix) for figure in known):
            print(f"no figure begins with {prefix}; there are: {', '.join(known)}", file=sys.stderr)
    document = describe(name, options.quick)
    if options.only and target is not None and target.is_file():
        document["figures"] = earlier(json.loads(target.read_text(encoding="utf-8")))
    started = time.monotonic()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that nothing stays behind
    with fresh_home():
        for group in groups:
            if not group.wanted(options.only):
                continue
            run.say(f"taking {', '.join(group.units)}")
            for figure, row in take(group, run).items():
                document["figures"][figure] = {**row, "date": document["date"], "commit": document["commit"]}
                print(line(figure, row), flush=True)
            if target is not None:
                write(target, document)
    run.say(f"done in {(time.monotonic() - started) / 60:.1f} min" + (f", written to {target}" if target else ""))
    return 0


def earlier(document: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of an earlier run, each with when and at which commit it was taken."""
    when = {"date": document["date"], "commit": document["commit"]}
    return {name: {**when, **row} for name, row in document["figures"].items()}


def take(group: Group, run: Run) -> dict[str, dict[str, Any]]:
    """The rows of a group's figures; what goes wrong becomes the reason why a figure is missing."""
    found: Mapping[str, Taken] = {}
    missing = "not taken: its function gave no value"
    try:
        found = group.measure(run)
    except HastenError as error:
        missing = f"not taken: {error.cause}" + (f" ({error.fix})" if error.fix else "")
    except Exception as error:  # one broken figure must not take the others down
        traceback.print_exc()
        missing = f"not taken: {type(error).__name__}: {error}"
    return {
        name: row(found.get(name, Taken(None, missing)), unit, group.goals.get(name))
        for name, unit in group.units.items()
    }


def row(taken: Taken, unit: str, goal: Goal | None) -> dict[str, Any]:
    """A figure as the JSON file has it; `met` is None where there is no goal or no value."""
    ci95 = taken.ci95 if taken.ci95 is not None and all(map(math.isfinite, taken.ci95)) else None
    met = None if goal is None or taken.value is None else goal.met(taken.value, taken.ci95)
    return {
        "value": taken.value,
        "ci95": None if ci95 is None else list(ci95),
        "unit": unit,
        "goal": None if goal is None else str(goal),
        "met": met,
        "how": taken.how,
    }


def line(name: str, found: Mapping[str, Any]) -> str:
    """One figure for the terminal."""
    if found["value"] is None:
        return f"{name:36} -           {found['how']}"
    value = f"{found['value']:.3g} {found['unit']}"
    if found["ci95"] is not None:
        value += f" [{found['ci95'][0]:.3g}, {found['ci95'][1]:.3g}]"
    verdict = "" if found["goal"] is None else f"goal {found['goal']}: {'met' if found['met'] else 'NOT met'}; "
    return f"{name:36} {value:28} {verdict}{found['how']}"


def describe(name: str, quick: bool) -> dict[str, Any]:
    """The document without its figures: when, from which commit, on what machine, with which versions."""
    document: dict[str, Any] = {
        "benchmark": name,
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
        "figures": {},
    }
    return document | ({"quick": True} if quick else {})


def write(path: Path, document: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".part")
    partial.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)


def commit() -> str:
    """The commit, marked where tracked files of the sources or benchmarks differ from it."""
    try:
        head = _git("rev-parse", "--short=12", "HEAD")
        changed = _git(
            "status", "--porcelain", "--untracked-files=no", "--", "src", "benchmarks", ":!benchmarks/results"
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+changes" if changed else "")


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def machine() -> dict[str, Any]:
    from hasten.diagnose.device import machine as bare

    found = bare()
    wanted = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8")
    return {
        "processor": found.name,
        "cpus": len(found.cpus),
        "memory_gb": round(found.memory_bytes / 1e9, 1),
        "instructions": [flag for flag in wanted if flag in found.flags],
        "system": platform.platform(),
    }


def versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    from hasten.versions import versions as installed

    found = installed()
    for package in ("transformers", "mlcommons-loadgen", "scikit-learn", "pillow"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


@contextmanager
def fresh_home() -> Iterator[Path]:
    """Run with hasten's cache and store in a new folder, so that nothing which an earlier run built is found again.

    Two things are kept: the measured limits of the device, and the exported demo models, which no budget counts.
    """
    cache = cache_dir()
    with tempfile.TemporaryDirectory(prefix="hasten-benchmark-") as folder:
        fresh = Path(folder) / "cache" / "hasten"
        fresh.mkdir(parents=True)
        (cache / "demo").mkdir(parents=True, exist_ok=True)
        (fresh / "demo").symlink_to(cache / "demo")
        for limits in cache.glob("device-*.json"):
            (fresh / limits.name).write_bytes(limits.read_bytes())
        before = {name: os.environ.get(name) for name in ("XDG_CACHE_HOME", "XDG_DATA_HOME", DOWNLOADS)}
        os.environ[DOWNLOADS] = str(downloads())
        os.environ["XDG_CACHE_HOME"] = str(fresh.parent)
        os.environ["XDG_DATA_HOME"] = str(Path(folder) / "data")
        try:
            yield Path(folder)
        finally:
            for limits in fresh.glob("device-*.json"):
                (cache / limits.name).write_bytes(limits.read_bytes())
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def downloads() -> Path:
    """Where fetched files are kept between runs, also while `fresh_home` hides hasten's own cache."""
    folder = Path(os.environ.get(DOWNLOADS) or cache_dir().parent / "hasten-benchmarks")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
