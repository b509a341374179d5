"""Opens the database of the store and says in words what is wrong with it."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.errors import Failed, InvalidInput
from hasten.paths import data_dir

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, Engine

Run = Callable[..., Any]
"""`run(sql, **parameters)` within a transaction."""

VERSION = 1
"""The version of the tables; raised when an older hasten could no longer read them."""

BUSY_S = 30
"""How long to wait while another process writes."""


class Database:
    """`url` is a path, sqlite:///PATH or postgresql://...; by default $HASTEN_STORE, else store.db in the data folder.

    `tables` are CREATE TABLE IF NOT EXISTS statements that SQLite and PostgreSQL read alike. Raises InvalidInput for a
    URL that names no store, and Failed where the database cannot be used.
    """

    def __init__(self, url: str | Path | None, tables: Sequence[str]) -> None:
        self._url = _parse(url)
        self.url = self._url.render_as_string(hide_password=True)
        self.engine = _engine(self._url)
        self._prepare(tables)

    @contextmanager
    def transaction(self, write: bool = True) -> Iterator[Run]:
        """Yield `run`; committed, on disk, at the end; rolled back where anything is raised."""
        from sqlalchemy import text

        with (
            self._explained(),
            self.engine.connect().execution_options(hasten_write=write) as connection,
            connection.begin(),
        ):
            yield lambda sql, **parameters: connection.execute(text(sql), parameters)

    def _prepare(self, tables: Sequence[str]) -> None:
        """Make the tables, and refuse those of a newer hasten."""
        if self.engine.dialect.name == "sqlite":
            path = Path(self._url.database or "")
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise _unwritable(path, error.strerror or str(error)) from None
            with self._explained():
                _write_ahead(self.engine)
        with self.transaction() as run:
            if self.engine.dialect.name == "postgresql":
                run("SELECT pg_advisory_xact_lock(7461873)")  # CREATE TABLE IF NOT EXISTS still collides with itself
            for table in (
                "CREATE TABLE IF NOT EXISTS hasten_meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
                *tables,
            ):
                run(table)
            run("INSERT INTO hasten_meta VALUES ('version', :version) ON CONFLICT DO NOTHING", version=str(VERSION))
            found = int(run("SELECT value FROM hasten_meta WHERE name = 'version'").scalar_one())
        if found > VERSION:
            raise InvalidInput(
                f"the store {self.url} was written by a newer hasten: its tables are of version {found}, not {VERSION}",
                "update hasten, or name another store with --store",
                "pip install --upgrade hasten",
            )

    @contextmanager
    def _explained(self) -> Iterator[None]:
        from sqlalchemy.exc import DBAPIError

        try:
            yield
        except DBAPIError as error:
            raise _explain(error.orig, self.url, self._url.database or "") from None
        except sqlite3.Error as error:
            raise _explain(error, self.url, self._url.database or "") from None


def _parse(url: str | Path | None) -> URL:
    from sqlalchemy import URL, make_url
    from sqlalchemy.exc import ArgumentError

    text = str(url or os.environ.get("HASTEN_STORE") or data_dir() / "store.db")
    if "://" not in text:
        return URL.create("sqlite", database=str(Path(text).expanduser().absolute()))
    kinds = "sqlite:///PATH or postgresql://USER@HOST/DATABASE"
    try:
        parsed = make_url(text)
    except (ArgumentError, ValueError):
        raise InvalidInput("the store's URL cannot be read", f"write it as {kinds}") from None
    backend = parsed.get_backend_name()
    if backend == "sqlite":
        if parsed.database in (None, "", ":memory:"):
            raise InvalidInput("a store in memory would keep nothing", "name a file: sqlite:///PATH")
        return parsed
    if backend in ("postgresql", "postgres"):
        return parsed.set(drivername="postgresql+psycopg")
    raise InvalidInput(f"a store cannot be kept in {backend!r}", f"use {kinds}")


def _engine(url: URL) -> Engine:
    from sqlalchemy import create_engine, event
    from sqlalchemy.pool import NullPool

    # No pool: a connection a trial costs nothing beside the trial, and none is ever shared by threads or forks.
    if url.get_backend_name() == "postgresql":
        try:
            return create_engine(url, poolclass=NullPool, connect_args={"connect_timeout": BUSY_S})
        except ModuleNotFoundError:
            raise InvalidInput(
                "a store in PostgreSQL needs the driver psycopg", "install it", "pip install 'psycopg[binary]'"
            ) from None
    engine = create_engine(url, poolclass=NullPool, connect_args={"timeout": BUSY_S})

    @event.listens_for(engine, "connect")
    def _connect(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # the driver would begin late; _begin does it
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A transaction that starts to read and then writes fails at once where another process wrote in between.
        write = connection.get_execution_options().get("hasten_write", True)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    return engine


def _write_ahead(engine: Engine) -> None:
    """Readers never wait and a commit is one fsync. Changing the journal ignores the busy timeout, so ask again."""
    connection = engine.raw_connection()
    try:
        cursor = connection.cursor()
        cursor.execute("PRAGMA auto_vacuum = FULL")  # only heeded before the first table: removed studies free the disk
        deadline = time.monotonic() + BUSY_S
        while True:
            try:
                cursor.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
    finally:
        connection.close()


def _explain(error: BaseException | None, url: str, path: str) -> Failed:
    """What went wrong in the database, in words, with what to do."""
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return Failed(f"the store {url} cannot be used: {reason}", "check that the server runs and the URL is right")
    match code & 0xFF:
        case sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_CORRUPT:
            fix, command = "move it away, and hasten starts a new one", f"mv {path} {path}.damaged"
            return Failed(f"the store {path} is damaged: {reason}", fix, command)
        case sqlite3.SQLITE_FULL:
            fix = "free some space, or name a store on another disk with --store"
            return Failed(f"the disk of the store {path} is full", fix, "hasten study rm KEY")
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return Failed(f"another process has kept the store {path} busy for {BUSY_S} s", "try again once it is done")
        case _:
            return _unwritable(Path(path), reason)


def _unwritable(path: Path, reason: str) -> Failed:
    return Failed(
        f"the store {path} cannot be opened or written: {reason}",
        "name a file in a folder that you may write to with --store or HASTEN_STORE",
    )
