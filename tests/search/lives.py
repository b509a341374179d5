"""Runs studies that are killed with -9 again and again: `python lives.py FOLDER SEED...` prints what became of each.

Every life is a process of its own, forked from one that has all imports done; it kills itself after a number of
operations drawn from the seed: those of the lab, those of the store, and every SQL statement inside them.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from search_case import FakeLab, search, study
from sqlalchemy import event

from hasten.lab.store import Store
from hasten.measurement import Trial

LIVES = 12


def live(folder: Path, kill_at: int | None) -> int:
    """Run the study of `folder` in a process; how many operations it took, or -9 if it was killed at one of them."""
    child = os.fork()
    if child == 0:
        code = 70
        try:
            code = _run(folder, kill_at)
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return -os.WTERMSIG(status)
    assert os.WEXITSTATUS(status) == 0, "the study failed"
    return int((folder / "operations").read_text())


def _run(folder: Path, kill_at: int | None) -> int:
    done = 0

    def step(name: str) -> None:
        nonlocal done
        if done == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        done += 1
        if name.startswith("begin screen"):
            _log(folder, f"screen {name.split()[-1]}")

    store = Noting(folder, step)
    event.listen(store.database.engine, "before_cursor_execute", lambda *_: step("statement"))
    event.listen(store.database.engine, "connect", _hasty)
    running, _ = search(store, lab=FakeLab(study().goal, step=step))
    found = running.run()
    (folder / "operations").write_text(str(done))
    (folder / "best").write_text(found.best_id)
    return 0


def _hasty(connection: Any, _record: Any) -> None:
    """A kill takes nothing from the kernel; only a power cut would, and waiting for the disk costs the test time."""
    connection.execute("PRAGMA synchronous = OFF")


class Noting(Store):
    """A store that logs which trials are safely on disk."""

    def __init__(self, folder: Path, step: Callable[[str], None]) -> None:
        super().__init__(folder / "store.db")
        self._folder, self._step = folder, step

    def add_trial(self, key: str, trial: Trial) -> None:
        self._step("add")
        super().add_trial(key, trial)
        _log(self._folder, f"kept {trial.id}")


def _log(folder: Path, line: str) -> None:
    with open(folder / "log", "ab", buffering=0) as file:
        file.write(line.encode() + b"\n")


def main(root: Path, seeds: list[int]) -> None:
    calm = root / "calm"
    calm.mkdir()
    operations = live(calm, None)
    answers = {"calm": _told(calm, 0)}
    for seed in seeds:
        folder = root / f"seed{seed}"
        folder.mkdir()
        moments = random.Random(seed)
        kills = 0
        for _ in range(moments.randint(1, LIVES)):
            # early moments more often: a study that goes on has less and less to do
            kills += live(folder, int(operations * moments.random() ** 2)) == -signal.SIGKILL
        live(folder, None)
        answers[str(seed)] = _told(folder, kills)
    print(json.dumps(answers))


def _told(folder: Path, kills: int) -> dict[str, object]:
    kept = Store(folder / "store.db").study(study().key)
    assert kept is not None
    return {
        "kills": kills,
        "best": (folder / "best").read_text(),
        "stored": kept.best_id,
        "why": kept.why,
        "log": (folder / "log").read_text().splitlines(),
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(seed) for seed in sys.argv[2:]])
