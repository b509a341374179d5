"""Keeps studies and their trials so that nothing that finished is lost: SQLite by default, PostgreSQL by URL."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hasten.errors import Failed, InvalidInput
from hasten.lab.database import Database, Run
from hasten.measurement import Trial
from hasten.study import Study

TABLES = (
    """CREATE TABLE IF NOT EXISTS hasten_studies (
        key TEXT PRIMARY KEY, header TEXT NOT NULL,
        created DOUBLE PRECISION NOT NULL, updated DOUBLE PRECISION NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS hasten_trials (
        study TEXT NOT NULL REFERENCES hasten_studies (key) ON DELETE CASCADE, id TEXT NOT NULL,
        body TEXT NOT NULL, finished DOUBLE PRECISION NOT NULL, PRIMARY KEY (study, id))""",
    """CREATE TABLE IF NOT EXISTS hasten_states (
        study TEXT NOT NULL REFERENCES hasten_studies (key) ON DELETE CASCADE, name TEXT NOT NULL,
        value TEXT NOT NULL, PRIMARY KEY (study, name))""",
)
"""The prefix makes hasten a good neighbour in a database that it shares."""


@dataclass(frozen=True)
class Entry:
    """A line of the list of studies. `header` is the study's JSON without its finished trials; times are Unix's."""

    key: str
    created: float
    updated: float
    trials: int
    header: Mapping[str, Any]


class Store:
    """`url` is a path, sqlite:///PATH or postgresql://...; by default $HASTEN_STORE, else store.db in the data folder.

    Every method is one transaction, on disk when it returns, and may be called by any number of processes and threads
    at once. An InvalidInput means a wrong URL or key; a Failed says why the database could not be used.
    """

    def __init__(self, url: str | Path | None = None, clock: Callable[[], float] = time.time) -> None:
        self.database = Database(url, TABLES)
        self._clock = clock

    # -- studies --------------------------------------------------------------------------------------------------

    def put_study(self, study: Study) -> None:
        """Keep everything of a study but its finished trials, which `add_trial` keeps one by one.

        Trials that it holds and that were never added (those that were not tried) are kept with the header: `study`
        gives them back, `trials` does not.
        """
        now = self._clock()
        with self.database.transaction() as run:
            added = {row[0] for row in run("SELECT id FROM hasten_trials WHERE study = :key", key=study.key)}
            header = study.to_json() | {
                "baseline": None,
                "trials": [trial.to_json() for trial in study.trials if trial.id not in added],
                "order": [trial.id for trial in study.trials],
            }
            run(
                """INSERT INTO hasten_studies (key, header, created, updated) VALUES (:key, :header, :now, :now)
                ON CONFLICT (key) DO UPDATE SET header = excluded.header, updated = excluded.updated""",
                key=study.key,
                header=json.dumps(header),
                now=now,
            )

    def study(self, key: str) -> Study | None:
        """The study with its finished trials, in the order that it was put with and later ones after that."""
        with self.database.transaction(write=False) as run:
            row = run("SELECT header FROM hasten_studies WHERE key = :key", key=key).first()
            trials = self._trials(run, key)
        if row is None:
            return None
        with _readable(key):
            header = json.loads(row[0])
            study = Study.from_json(header)
            order = {trial_id: place for place, trial_id in enumerate(header["order"])}
            added = {trial.id for trial in trials}
            everything = [*trials, *(trial for trial in study.trials if trial.id not in added)]
            return replace(
                study, trials=tuple(sorted(everything, key=lambda trial: order.get(trial.id, len(everything))))
            )

    def studies(self) -> tuple[Entry, ...]:
        """All studies, the one that was touched last first."""
        with self.database.transaction(write=False) as run:
            rows = run(
                """SELECT key, created, updated, header,
                (SELECT count(*) FROM hasten_trials WHERE study = key)
                FROM hasten_studies ORDER BY updated DESC, key"""
            ).all()
        entries = []
        for key, created, updated, header, trials in rows:
            with _readable(key):
                entries.append(Entry(key, created, updated, trials, json.loads(header)))
        return tuple(entries)

    def find(self, prefix: str) -> str:
        """The one key that begins with `prefix`, or an InvalidInput."""
        found = [entry.key for entry in self.studies() if entry.key.startswith(prefix)]
        if len(found) == 1:
            return found[0]
        cause = f"{len(found)} studies begin with {prefix!r}" if found else f"there is no study {prefix!r} in the store"
        raise InvalidInput(cause, "give more of its key" if found else "see which there are", "hasten study list")

    def remove(self, key: str) -> bool:
        """Forget a study with its trials and states; whether there was one."""
        with self.database.transaction() as run:
            return bool(run("DELETE FROM hasten_studies WHERE key = :key", key=key).rowcount)

    def trim(self, limit_bytes: int) -> tuple[str, ...]:
        """Forget the studies that were touched longest ago until the rest takes at most `limit_bytes`."""
        with self.database.transaction() as run:
            rows = run(
                """SELECT key, length(header)
                + coalesce((SELECT sum(length(body)) FROM hasten_trials WHERE study = key), 0)
                + coalesce((SELECT sum(length(value)) FROM hasten_states WHERE study = key), 0)
                FROM hasten_studies ORDER BY updated, key"""
            ).all()
            total, removed = sum(row[1] for row in rows), []
            for key, size in rows:
                if total <= limit_bytes:
                    break
                run("DELETE FROM hasten_studies WHERE key = :key", key=key)
                removed.append(key)
                total -= size
        return tuple(removed)

    # -- trials and states ----------------------------------------------------------------------------------------

    def add_trial(self, key: str, trial: Trial) -> None:
        """Keep a finished trial of a study that was put before; one of the same id is replaced in its place."""
        now = self._clock()
        with self.database.transaction() as run:
            touched = run("UPDATE hasten_studies SET updated = :now WHERE key = :key", key=key, now=now)
            if not touched.rowcount:
                raise _forgotten(key)
            run(
                """INSERT INTO hasten_trials (study, id, body, finished) VALUES (:key, :id, :body, :now)
                ON CONFLICT (study, id) DO UPDATE SET body = excluded.body""",
                key=key,
                id=trial.id,
                body=json.dumps(trial.to_json()),
                now=now,
            )

    def trials(self, key: str) -> tuple[Trial, ...]:
        """The trials that were added, in the order in which they first finished."""
        with self.database.transaction(write=False) as run:
            return self._trials(run, key)

    def put_state(self, key: str, name: str, value: Any) -> None:
        """Keep any JSON value beside a study that was put before."""
        with self.database.transaction() as run:
            if run("SELECT 1 FROM hasten_studies WHERE key = :key", key=key).first() is None:
                raise _forgotten(key)
            run(
                """INSERT INTO hasten_states (study, name, value) VALUES (:key, :name, :value)
                ON CONFLICT (study, name) DO UPDATE SET value = excluded.value""",
                key=key,
                name=name,
                value=json.dumps(value),
            )

    def state(self, key: str, name: str) -> Any:
        """What `put_state` kept, or None."""
        with self.database.transaction(write=False) as run:
            row = run("SELECT value FROM hasten_states WHERE study = :key AND name = :name", key=key, name=name).first()
        return None if row is None else json.loads(row[0])

    def _trials(self, run: Run, key: str) -> tuple[Trial, ...]:
        rows = run("SELECT body FROM hasten_trials WHERE study = :key ORDER BY finished, id", key=key).all()
        with _readable(key):
            return tuple(Trial.from_json(json.loads(row[0])) for row in rows)


def _forgotten(key: str) -> Failed:
    return Failed(f"study {key[:12]} is not in the store", "it was removed while it ran: start it again")


@contextmanager
def _readable(key: str) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        cause = f"study {key[:12]} in the store cannot be read ({type(error).__name__}: {error})"
        raise Failed(cause, "remove it and run it again", f"hasten study rm {key[:12]}") from None
