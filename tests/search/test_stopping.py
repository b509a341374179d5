"""A study may be stopped at any instant, gently or with -9: what was finished stays, and it goes on from there."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from search_case import BEST, BROUGHT, FakeLab, search, study

from hasten.measurement import Trial
from hasten.study import Study


@pytest.fixture(scope="module")
def lives(tmp_path_factory) -> dict[str, Any]:
    """Twenty studies, each killed between one and twelve times at instants drawn from its seed."""
    script = Path(__file__).with_name("lives.py")
    command = [sys.executable, str(script), str(tmp_path_factory.mktemp("lives")), *map(str, range(20))]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr
    answers: dict[str, Any] = json.loads(ended.stdout)
    return answers


@pytest.mark.slow
def test_studies_killed_with_9_at_random_instants_end_with_the_same_best_recipe(lives):
    assert lives["calm"]["best"] == BEST.id
    killed = {seed: told for seed, told in lives.items() if seed != "calm"}
    assert len(killed) == 20
    assert sum(told["kills"] for told in killed.values()) >= 60
    assert {told["best"] for told in killed.values()} == {BEST.id}
    assert {told["stored"] for told in killed.values()} == {BEST.id}
    assert {told["why"] for told in killed.values()} == {lives["calm"]["why"]}


@pytest.mark.slow
def test_no_finished_trial_is_screened_twice(lives):
    for told in lives.values():
        kept: set[str] = set()
        for line in told["log"]:
            what, _, trial = line.partition(" ")
            if what == "kept":
                kept.add(trial)
            else:
                assert trial not in kept
        screens = Counter(line for line in told["log"] if line.startswith("screen"))
        assert sum(screens.values()) - len(screens) <= told["kills"], "a kill costs the trial that it hit, and no other"


class Memory:
    """A store that forgets nothing and tells when it is asked: as JSON, so that nothing is shared by accident."""

    def __init__(self, step: Callable[[str], None] = lambda name: None) -> None:
        self.step = step
        self.header: dict[str, Any] | None = None
        self.kept: dict[str, str] = {}
        self.states: dict[str, str] = {}

    def put_study(self, study: Study) -> None:
        self.step("put")
        self.header = study.to_json()
        self.step("put done")

    def study(self, key: str) -> Study | None:
        if self.header is None:
            return None
        found = Study.from_json(self.header)
        trials = {trial.id: trial for trial in (*found.trials, *self.trials(key))}
        return Study.from_json({**self.header, "trials": [trial.to_json() for trial in trials.values()]})

    def add_trial(self, key: str, trial: Trial) -> None:
        self.step("add")
        assert self.header is not None
        self.kept[trial.id] = json.dumps(trial.to_json())
        self.step("add done")

    def trials(self, key: str) -> list[Trial]:
        return [Trial.from_json(json.loads(text)) for text in self.kept.values()]

    def put_state(self, key: str, name: str, value: Any) -> None:
        self.step("state")
        self.states[name] = json.dumps(value)

    def state(self, key: str, name: str) -> Any:
        return json.loads(self.states.get(name, "null"))


class Presses:
    """Ctrl-C at some of the operations, by their number."""

    def __init__(self, *moments: int) -> None:
        self.moments, self.count = set(moments), 0

    def __call__(self, name: str) -> None:
        self.count += 1
        if self.count in self.moments:
            raise KeyboardInterrupt


def run(store: Memory, presses: Presses) -> tuple[Study | None, FakeLab]:
    """The study of one run, or None where a Ctrl-C ended it at once."""
    store.step = presses
    lab = FakeLab(study().goal, step=presses)
    running, _ = search(store, lab=lab, on_event=lambda event: presses(event.kind))
    try:
        return running.run(), lab
    except KeyboardInterrupt:
        return None, lab


@pytest.fixture(scope="module")
def operations() -> int:
    presses = Presses()
    run(Memory(), presses)
    return presses.count


@pytest.mark.slow
def test_one_ctrl_c_anywhere_leaves_a_whole_study_that_goes_on(operations):
    for moment in range(3, operations + 1):  # the first two put the study: there is nothing to answer yet
        store = Memory()
        found, _ = run(store, Presses(moment))
        assert found is not None, f"Ctrl-C at operation {moment} lost the answer"
        kept = store.study(found.key)
        assert kept is not None
        assert kept.best_id == found.best_id
        assert {t.id for t in kept.trials} == {t.id for t in found.trials}
        measured = [t for t in found.trials if t.speedup is not None]
        assert (found.best is not None) == bool(measured)
        if found.best is not None and found.best.recipe != BROUGHT:
            assert found.best.final
            assert found.best.status == "ok"
        elif measured:
            better = [t for t in measured if t.status == "ok" and t.recipe != BROUGHT]
            assert not better, f"Ctrl-C at operation {moment}: there was something better than the model as brought"
        stored = {trial.id for trial in store.trials(found.key)}
        again, second = run(store, Presses())
        assert again is not None
        assert again.best_id == BEST.id
        assert not set(second.screened) & stored


@pytest.mark.parametrize("gap", [1, 2, 5, 9])
def test_further_presses_anywhere_leave_a_valid_study_that_goes_on(operations, gap):
    for moment in range(2, operations + 1, 3):
        store = Memory()
        found, _ = run(store, Presses(*range(moment, moment + 4 * gap, gap)))
        kept = store.study(study().key)
        assert kept is not None
        if found is not None:
            assert kept.best_id == found.best_id
        again, _ = run(store, Presses())
        assert again is not None
        assert again.best_id == BEST.id


def test_a_confirmed_winner_survives_any_later_interruption(operations):
    finished = Memory()
    run(finished, Presses())
    finished.states.pop("explored")
    for moment in range(1, 40):
        store = Memory()
        store.header, store.kept, store.states = finished.header, dict(finished.kept), dict(finished.states)
        store.states = {}
        found, _ = run(store, Presses(moment, moment + 1))
        kept = store.study(study().key)
        assert kept is not None
        assert kept.best_id == BEST.id
        assert found is None or found.best_id == BEST.id


def test_the_last_event_says_whether_the_user_stopped_it():
    for presses, expected in ((Presses(), False), (Presses(30), True)):
        heard = []
        lab = FakeLab(study().goal, step=presses)
        running, _ = search(Memory(), lab=lab, on_event=heard.append)
        running.run()
        assert heard[-1].kind == "done"
        assert heard[-1].data["interrupted"] is expected
