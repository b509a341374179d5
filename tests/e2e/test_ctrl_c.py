"""Ctrl-C on `hasten optimize`: exit code 130, a valid study, the best bundle so far, and a run that goes on."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e_case import Home, Said

from hasten.lab.store import Store

Run = Callable[..., Said]
Start = Callable[..., "subprocess.Popen[str]"]


def read_until(child: subprocess.Popen[str], found: Callable[[str], bool], count: int = 1) -> str:
    """What the command prints until `count` lines were like that; it is killed if they do not come within minutes."""
    assert child.stdout is not None
    watchdog = threading.Timer(180, os.killpg, (child.pid, signal.SIGKILL))
    watchdog.start()
    said = ""
    try:
        for line in child.stdout:
            said += line
            count -= found(line)
            if count == 0:
                return said
    finally:
        watchdog.cancel()
    raise AssertionError(f"it ended before that:\n{said}")


def press(child: subprocess.Popen[str], said: str) -> str:
    """What a terminal does on Ctrl-C: SIGINT to the whole process group. Returns all that was printed."""
    os.killpg(child.pid, signal.SIGINT)
    rest, _ = child.communicate(timeout=180)
    return said + rest


def is_trial(line: str) -> bool:
    """A row of the live table, such as `[ 0:29]     1.00x  onnxruntime | batch 32  as brought  ok`."""
    return re.match(r"\[ *[0-9:]+\] +[0-9.]+x  ", line) is not None


@pytest.mark.slow
def test_ctrl_c_during_optimize_keeps_what_was_measured_and_the_next_run_goes_on(
    process: Start, hasten: Run, home: Home, model: Path, data: Path, tmp_path: Path
) -> None:
    command = ("optimize", model, "--data", data, "--skip", "int8", "--out", tmp_path / "bundle")
    before = set(home.studies())
    child = process(*command, "--budget", "300s")
    said = read_until(child, is_trial, 3)
    said = press(child, said)
    assert child.returncode == 130, said
    assert "Traceback" not in said
    assert "stopped by the user: confirming the best so far" in said
    (key,) = set(home.studies()) - before
    store = Store(home.store)
    kept = store.study(key)
    assert kept is not None
    assert kept.best is not None
    assert kept.baseline is not None
    assert (tmp_path / "bundle" / "run.py").exists(), said
    assert home.settled() == []

    finished = {trial.id: trial.rounds for trial in store.trials(key)}
    again = hasten(*command, "--budget", "20s")
    assert again.code == 0, again
    assert f"resumed with {len(finished)} finished trials" in again.out
    ended = store.study(key)
    assert ended is not None
    assert finished.keys() <= {trial.id for trial in ended.trials}
    repeated = [t.id for t in store.trials(key) if t.id in finished and not t.final and t.rounds != finished[t.id]]
    assert repeated == []


def test_ctrl_c_before_anything_was_measured_is_over_at_once(
    process: Start, home: Home, model: Path, data: Path, tmp_path: Path
) -> None:
    child = process("optimize", model, "--data", data, "--budget", "300s", "--out", tmp_path / "bundle")
    said = press(child, read_until(child, lambda line: "reading the model" in line))
    assert child.returncode == 130, said
    assert "Traceback" not in said
    assert "interrupted" in said
    assert not (tmp_path / "bundle").exists()
    assert home.settled() == []
