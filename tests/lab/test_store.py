from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event

from hasten.device import Device
from hasten.errors import Failed, InvalidInput
from hasten.goal import Goal
from hasten.lab.store import Store
from hasten.measurement import Figure, Measurement, Quality, Trial
from hasten.model import Facts, Model, Signature, Tensor
from hasten.recipe import Recipe, Step
from hasten.study import Study
from hasten.workload import Padding, Samples, Workload

POSTGRES = os.environ.get("HASTEN_TEST_POSTGRES", "")


def a_trial(number: int, **extra: object) -> Trial:
    recipe = Recipe((Step("int8", {"keep": ["a.*"]}),), {"name": "openvino", "streams": number})
    figures = {
        "latency_ms.p50": Figure(2.5, "ms", "measured", (2.4, 2.6)),
        "size_mb": Figure(4.25, "MB", "measured"),
    }
    drop = Figure(0.1, "pt", "measured", (-0.1, 0.3))
    quality = Quality("accuracy", Figure(0.93, "", "measured", (0.9, 0.95)), drop, "labels", 900)
    trial = Trial(
        recipe.id,
        recipe,
        "ok",
        "quicker",
        Measurement(figures, quality),
        Figure(2.0, "x", "measured", (1.9, 2.1)),
        ((1.0, 0.5), (1.1, 0.55)),
        12.5,
        stderr='line\nbyte \x00, half a pair \udc80, "quotes" and Ω',
    )
    return replace(trial, **extra)  # type: ignore[arg-type]


def a_study(seed: int = 0, **extra: object) -> Study:
    tensor = Tensor("x", "float32", ("N", 3, None))
    model = Model(Path("m.onnx"), "onnx", "ab" * 32, Signature((tensor,), (tensor,)), Facts(10, 40, 17, "torch"))
    samples = Samples(Path("s"), "cd" * 32, 900, (tensor,), "data", True, "npz")
    workload = Workload(model, samples, "accuracy", "offline", None, Padding({"x": 0.0}, 0, True))
    goal = Goal.parse("throughput", "0.5pt", ["p99<20ms"], 60.0)
    return replace(Study(workload, goal, Device("cpu", cpus=(0, 1)), {"hasten": "0.1"}, seed), **extra)  # type: ignore[arg-type]


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A fresh store in each kind of database; a schema of its own in PostgreSQL."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'deep' / 'store.db'}"
        return
    if not POSTGRES:
        pytest.skip("HASTEN_TEST_POSTGRES names no PostgreSQL server")
    import psycopg

    schema = "t" + uuid.uuid4().hex
    plain = POSTGRES.replace("+psycopg", "")
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
        yield f"{plain}{'&' if '?' in plain else '?'}options=-csearch_path%3D{schema}"
        connection.execute(f"DROP SCHEMA {schema} CASCADE")


@pytest.fixture
def store(url: str) -> Store:
    ticks = iter(range(1, 10**9))
    return Store(url, clock=lambda: float(next(ticks)))


def test_a_study_comes_back_as_it_was(store: Store, url: str) -> None:
    trials = (a_trial(3), a_trial(1), a_trial(2, status="rejected", reason="not tried"))
    study = a_study(trials=trials, pareto=(trials[0].id,), best_id=trials[0].id, why="quickest", notes=("n",))
    store.put_study(replace(study, trials=()))
    for trial in (trials[1], trials[0]):
        store.add_trial(study.key, trial)
    store.put_study(study)
    assert Store(url).study(study.key) == study
    assert store.trials(study.key) == (trials[1], trials[0])  # what was not tried was never finished


def test_a_trial_that_finished_after_the_study_was_put_is_part_of_it(store: Store) -> None:
    study = a_study()
    store.put_study(study)
    store.add_trial(study.key, a_trial(1))
    found = store.study(study.key)
    assert found is not None
    assert found.trials == (a_trial(1),)


def test_adding_a_trial_again_replaces_it_in_its_place(store: Store) -> None:
    study = a_study()
    store.put_study(study)
    for trial in (a_trial(1), a_trial(2), a_trial(1, final=True), a_trial(1, final=True)):
        store.add_trial(study.key, trial)
    assert store.trials(study.key) == (a_trial(1, final=True), a_trial(2))


def test_studies_are_listed_newest_first_and_found_by_the_start_of_their_key(store: Store) -> None:
    first, second = a_study(1), a_study(2, why="because")
    store.put_study(first)
    store.put_study(second)
    store.add_trial(first.key, a_trial(1))
    entries = store.studies()
    assert [(entry.key, entry.trials) for entry in entries] == [(first.key, 1), (second.key, 0)]
    assert entries[1].header["why"] == "because"
    assert (entries[0].created, entries[0].updated) == (1.0, 3.0)
    assert store.find(first.key[:8]) == first.key
    with pytest.raises(InvalidInput, match="2 studies begin with ''"):
        store.find("")
    with pytest.raises(InvalidInput, match="no study 'xyz'"):
        store.find("xyz")
    assert store.study("xyz") is None
    assert store.trials("xyz") == ()


def test_a_removed_study_leaves_nothing_and_a_trial_that_comes_late_is_told_so(store: Store) -> None:
    study = a_study()
    store.put_study(study)
    store.add_trial(study.key, a_trial(1))
    store.put_state(study.key, "profile", {"Conv": 0.5})
    assert store.remove(study.key)
    assert not store.remove(study.key)
    with pytest.raises(Failed, match="not in the store"):
        store.add_trial(study.key, a_trial(2))
    with pytest.raises(Failed, match="not in the store"):
        store.put_state(study.key, "profile", {})
    store.put_study(study)
    assert store.trials(study.key) == ()
    assert store.state(study.key, "profile") is None


def test_states_are_kept_by_name(store: Store) -> None:
    study = a_study()
    store.put_study(study)
    assert store.state(study.key, "table") is None
    store.put_state(study.key, "table", [1, None])
    store.put_state(study.key, "table", {"layer": 0.25})
    assert store.state(study.key, "table") == {"layer": 0.25}


def test_trimming_forgets_what_was_touched_longest_ago(store: Store) -> None:
    studies = [a_study(seed) for seed in range(4)]
    for study in studies:
        store.put_study(study)
        store.add_trial(study.key, a_trial(1, stderr="x" * 10_000))
    store.add_trial(studies[0].key, a_trial(2))
    assert store.trim(10**9) == ()
    assert store.trim(35_000) == (studies[1].key, studies[2].key)
    assert {entry.key for entry in store.studies()} == {studies[0].key, studies[3].key}


WRITE = """
import sys
sys.path.insert(0, sys.argv[1])
from test_store import a_study, a_trial
from hasten.lab.store import Store
store = Store(sys.argv[2])
store.put_study(a_study())
for number in range(int(sys.argv[3]), int(sys.argv[4])):
    store.add_trial(a_study().key, a_trial(number))
    print(number, flush=True)
"""


def writer(url: str, first: int, last: int) -> subprocess.Popen[str]:
    here = str(Path(__file__).parent)
    arguments = [sys.executable, "-c", WRITE, here, url, str(first), str(last)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_processes_that_open_one_store_and_write_at_once_lose_nothing(url: str) -> None:
    writers = [writer(url, 100 * n, 100 * n + 25) for n in range(3)]
    for process in writers:
        _, stderr = process.communicate(timeout=120)
        assert process.returncode == 0, stderr
    found = {trial.recipe.runtime["streams"] for trial in Store(url).trials(a_study().key)}
    assert found == {100 * n + i for n in range(3) for i in range(25)}


@pytest.mark.parametrize("said", [1, 7, 20])
def test_a_writer_killed_with_9_loses_no_trial_that_it_finished(url: str, said: int) -> None:
    process = writer(url, 0, 100_000)
    assert process.stdout is not None
    finished = [int(process.stdout.readline()) for _ in range(said)]
    process.send_signal(signal.SIGKILL)
    finished += [int(line) for line in process.communicate()[0].split()]
    store = Store(url)
    found = [trial.recipe.runtime["streams"] for trial in store.trials(a_study().key)]
    assert finished == found[: len(finished)]
    assert len(found) <= len(finished) + 1  # the one that was on disk before it could be said
    assert store.trials(a_study().key)[0] == a_trial(0)
    store.add_trial(a_study().key, a_trial(100_001))
    assert store.trials(a_study().key)[-1] == a_trial(100_001)


@given(st.text(), st.floats(allow_nan=False), st.dictionaries(st.text(), st.integers() | st.text() | st.booleans()))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_and_number_survives(tmp_path: Path, text: str, number: float, options: dict[str, object]) -> None:
    store = Store(tmp_path / "any.db")
    options.pop("lever", None), options.pop("part", None)
    trial = Trial("id", Recipe((Step("x", options),)), "failed", text, seconds_spent=number, why=text, stderr=text)
    store.put_study(a_study())
    store.add_trial(a_study().key, trial)
    assert store.trials(a_study().key) == (trial,)


def test_the_store_lies_in_the_users_data_folder_unless_the_environment_names_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HASTEN_STORE", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    Store()
    assert (tmp_path / "data" / "hasten" / "store.db").is_file()
    monkeypatch.setenv("HASTEN_STORE", str(tmp_path / "other.db"))
    Store()
    assert (tmp_path / "other.db").is_file()


@pytest.mark.parametrize(
    ("url", "cause"),
    [
        ("mysql://me@host/db", "cannot be kept in 'mysql'"),
        ("nonsense://x", "cannot be kept in 'nonsense'"),
        ("://x", "cannot be read"),
        ("postgresql://host:port/db", "cannot be read"),
        ("sqlite://", "in memory"),
        ("sqlite:///:memory:", "in memory"),
    ],
)
def test_a_url_that_names_no_store_is_the_users_mistake(url: str, cause: str) -> None:
    with pytest.raises(InvalidInput, match=cause) as caught:
        Store(url)
    assert caught.value.fix


def test_a_server_that_does_not_answer_is_named_without_its_password() -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(Failed, match="cannot be used") as caught:
        Store("postgresql://me:secret@127.0.0.1:1/db")
    assert "secret" not in str(caught.value)
    assert "127.0.0.1" in str(caught.value)


def test_a_store_where_no_file_can_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "file" / "store.db", tmp_path / "folder"):
        with pytest.raises(Failed, match="cannot be opened or written") as caught:
            Store(path)
        assert "--store" in caught.value.fix


def test_a_read_only_store_says_so_when_it_is_written(tmp_path: Path) -> None:
    store = Store(tmp_path / "store.db")
    store.put_study(a_study())

    @event.listens_for(store.database.engine, "connect")
    def read_only(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute("PRAGMA query_only = ON")

    with pytest.raises(Failed, match="cannot be opened or written"):
        store.add_trial(a_study().key, a_trial(1))


def test_a_damaged_store_says_how_to_move_on(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(b"this is no database, whatever its name says" * 100)
    with pytest.raises(Failed, match="is damaged") as caught:
        Store(path)
    assert caught.value.command == f"mv {path} {path}.damaged"


def test_a_store_damaged_in_the_middle_says_so_when_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = Store(path)
    store.put_study(a_study())
    for number in range(50):
        store.add_trial(a_study().key, a_trial(number))
    size = path.stat().st_size
    with path.open("r+b") as file:
        for page in range(4096, size, 4096):
            file.seek(page)
            file.write(b"\xff" * 64)
    with pytest.raises(Failed, match="is damaged"):
        store.trials(a_study().key)


def test_a_full_disk_is_named_and_loses_nothing_that_was_finished(tmp_path: Path) -> None:
    store = Store(tmp_path / "store.db")
    store.put_study(a_study())
    store.add_trial(a_study().key, a_trial(1))

    @event.listens_for(store.database.engine, "connect")
    def full(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute("PRAGMA max_page_count = 1")  # as many as there are

    with pytest.raises(Failed, match="is full") as caught:
        store.add_trial(a_study().key, a_trial(2, stderr="x" * 100_000))
    assert "free some space" in caught.value.fix
    assert store.trials(a_study().key) == (a_trial(1),)


def test_a_store_of_a_newer_hasten_is_left_alone(url: str) -> None:
    with Store(url).database.transaction() as run:
        run("UPDATE hasten_meta SET value = '99' WHERE name = 'version'")
    with pytest.raises(InvalidInput, match="newer hasten") as caught:
        Store(url)
    assert "pip install --upgrade" in caught.value.command


def test_a_study_that_this_version_cannot_read_says_how_to_forget_it(store: Store) -> None:
    study = a_study()
    store.put_study(study)
    with store.database.transaction() as run:
        run("UPDATE hasten_studies SET header = :header", header=json.dumps({"goal": {}}))
    with pytest.raises(Failed, match="cannot be read") as caught:
        store.study(study.key)
    assert caught.value.command == f"hasten study rm {study.key[:12]}"
    assert store.remove(study.key)


def test_importing_the_store_does_not_import_sqlalchemy() -> None:
    code = (
        "import sys, hasten.lab.store, hasten.lab.race; sys.exit('sqlalchemy' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
