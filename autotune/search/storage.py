"""The storage of a study, an SQLite file or an Optuna storage by its URL, and its faults in words.

Only what is to be made is made: whoever looks at a study leaves no file and no table behind. A
storage that a run has opened and that goes away is waited for.
"""

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
from sqlalchemy import URL, Engine, event, make_url
from sqlalchemy.exc import DBAPIError, IntegrityError, ProgrammingError
from sqlalchemy.pool import NullPool

from autotune.errors import AutotuneError, machine_error, user_error
from autotune.process.run_folder import STORAGE

WAIT_S = 120.0
"""Seconds that a run waits for a lost storage: a server that is restarted takes some."""
_PAUSE_S = 1.0
_TRIES = 5
"""Tries to open a new database: one of several processes makes the tables, the others look
again."""
_LOCKED_S = 60.0
_FAULTS = (optuna.exceptions.StorageInternalError, DBAPIError, sqlite3.Error)


def open_storage(place: Path | str, *, make: bool) -> Any:
    """Return the storage of a study.

    Args:
        place: an SQLite file, or the URL of a storage.
        make: whether the file or the tables are made where they are missing.

    Raises:
        UserError: it cannot be opened.
    """
    try:
        if isinstance(place, Path):
            if make and not place.exists():
                _make(place)
            return _file(place, make)
        url = make_url(place)
        if url.get_backend_name() == "sqlite" and url.database:
            return _file(Path(url.database), make)
        storage = _made_once(_server_url(url), make)
        _wait_for(storage.engine)
        return optuna.storages.get_storage(storage)
    except AutotuneError:
        raise
    except Exception as error:
        raise user_error(
            f"cannot open the study: {type(error).__name__}: {_database_message(error)}",
            where=str(place) if isinstance(place, Path) else STORAGE,
            hint="an Optuna storage URL looks like `postgresql://user@host/database`",
        ) from None


@contextlib.contextmanager
def faults_of_storage(where: str) -> Iterator[None]:
    """Turn faults of a storage into messages within this block.

    Raises:
        MachineError: it failed, or stayed away for longer than it is waited for.
    """
    try:
        yield
    except _FAULTS as error:
        raise machine_error(
            f"the storage of the study failed: {_database_message(error)}",
            where=where,
            hint="all measurements are kept: resume the run when the storage is back",
        ) from error


def fault_of_file(database: Path, name: str) -> str | None:
    """Return the fault of the SQLite file of the study called `name`; None: it has none.

    Raises:
        MachineError: it cannot be examined: it may not be opened, or another process holds it.
    """
    if not database.exists():
        return "it is missing"
    if database.stat().st_size == 0:
        return "it is empty"
    try:
        with contextlib.closing(_connect(database, "rw")) as connection:
            (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != "ok":
                return str(verdict).splitlines()[0]
            query = "SELECT 1 FROM studies WHERE study_name = ?"
            study_row = connection.execute(query, (name,)).fetchone()
    except sqlite3.OperationalError as error:
        if "no such" in str(error):
            return "it holds no study"
        raise machine_error(f"it cannot be read: {error}", where=str(database)) from None
    except sqlite3.DatabaseError as error:
        return str(error)
    return None if study_row else "it holds no study of this run"


def _make(database: Path) -> None:
    """Make the SQLite file of a run whole, or not at all: its indexes come after its tables, and
    without them a study may be there twice."""
    draft = database.with_name(f"{database.name}.draft")
    for left in (draft, draft.with_name(f"{draft.name}-journal")):  # SQLite would play it back
        left.unlink(missing_ok=True)
    _file(draft, make=True)
    draft.replace(database)


def _file(database: Path, make: bool) -> Any:
    """Return the storage of an SQLite file, by a creator: no character of its path is taken for URL
    syntax."""
    mode = "rwc" if make else "rw"
    return optuna.storages.RDBStorage(
        "sqlite://",
        engine_kwargs={"creator": lambda: _connect(database, mode), "poolclass": NullPool},
        skip_table_creation=not make,
    )


def _connect(database: Path, mode: str) -> sqlite3.Connection:
    uri = f"{database.absolute().as_uri()}?mode={mode}"
    return sqlite3.connect(uri, uri=True, timeout=_LOCKED_S, check_same_thread=False)


def _server_url(url: URL) -> str:
    """Return the URL of a server, with psycopg for PostgreSQL: the service brings it."""
    if url.drivername in ("postgres", "postgresql"):
        url = url.set(drivername="postgresql+psycopg")
    return url.render_as_string(hide_password=False)


def _made_once(url: str, make: bool) -> Any:
    """Return the storage of a URL, its tables made here or by another process at the same time."""
    for attempt in range(_TRIES):
        try:
            return optuna.storages.RDBStorage(
                url,
                # Each time a new connection: one that is kept would be lost while a probe runs.
                engine_kwargs={"poolclass": NullPool, "hide_parameters": True},
                skip_table_creation=not make,
            )
        except (IntegrityError, ProgrammingError) as error:
            lost_race = isinstance(error, IntegrityError) or "already exists" in str(error)
            if not make or not lost_race or attempt + 1 == _TRIES:
                raise
            time.sleep(_PAUSE_S)
    raise AssertionError


def _wait_for(engine: Engine) -> None:
    """Retry connections of this engine, from now on, until its server answers."""

    def connect(dialect: Any, _: Any, arguments: Any, parameters: Any) -> Any:
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                return dialect.connect(*arguments, **parameters)
            except dialect.loaded_dbapi.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_PAUSE_S)

    event.listen(engine, "do_connect", connect)


def _database_message(error: BaseException) -> str:
    """Return the first line of the database's message, without its statement and parameters."""
    if isinstance(error, optuna.exceptions.StorageInternalError) and error.__cause__:
        error = error.__cause__
    text = str(getattr(error, "orig", None) or error).strip()
    return text.splitlines()[0] if text else type(error).__name__
