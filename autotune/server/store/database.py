"""The service's database: SQLite in a file (WAL), or PostgreSQL by its URL."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, Engine, create_engine, event, inspect, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.orm import Session, sessionmaker

from autotune.errors import machine_error, user_error
from autotune.server.store.tables import Table

MIGRATIONS = Path(__file__).parent / "migrations"
VERSION_TABLE = "service_version"
"""Optuna keeps `alembic_version` in the same database for itself."""
_BUSY_MS = 15_000
_WRITES = "service_writes"
_POSTGRESQL = "postgresql+psycopg"


class Database:
    """Opens sessions, each of them one transaction."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._reader = engine.execution_options(**{_WRITES: False})
        self._read = sessionmaker(self._reader)
        self._write = sessionmaker(engine, expire_on_commit=False)

    def reading(self) -> Session:
        """Return a session that only reads: it waits for nobody."""
        return self._read()

    def connection(self) -> Connection:
        """Return a connection that only reads, for rows that need not become objects: this costs a
        fourth, which counts in every request."""
        return self._reader.connect()

    @contextlib.contextmanager
    def writing(self) -> Iterator[Session]:
        """Open a session whose changes are kept at its end, if nothing is raised."""
        with self._write.begin() as session:
            yield session

    def close(self) -> None:
        """Give back all connections."""
        self.engine.dispose()


def open_database(url: str) -> Database:
    """Return a database, its tables as this version has them.

    Raises:
        UserError: no database can be opened by this URL.
        MachineError: it does not answer, or cannot be brought to this version.
    """
    engine = _engine(url)
    try:
        with engine.begin() as connection:
            config = Config()
            config.set_main_option("script_location", str(MIGRATIONS))
            config.attributes["connection"] = connection
            if inspect(connection).has_table(VERSION_TABLE):
                command.upgrade(config, "head")
            else:
                command.stamp(config, "head")
            Table.metadata.create_all(connection)  # those that are not there
    except SQLAlchemyError as error:
        reason = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
        raise machine_error(
            f"the database cannot be used: {reason}",
            where=_shown(url),
            hint="check that it is there and that its user may create tables",
        ) from None
    return Database(engine)


def sqlite_url(path: Path) -> str:
    """Return the URL of an SQLite file."""
    return f"sqlite:///{path}"


def study_url(url: str) -> str | None:
    """Return the URL of the same database for Optuna's studies; None: workers of other machines
    cannot reach it."""
    parsed = make_url(url)
    if parsed.get_backend_name() != "postgresql":
        return None
    return parsed.set(drivername=_POSTGRESQL).render_as_string(hide_password=False)


def _engine(url: str) -> Engine:
    try:
        if make_url(url).get_backend_name() == "postgresql":
            parsed = make_url(url).set(drivername=_POSTGRESQL)
            return create_engine(
                parsed, pool_size=10, max_overflow=20, pool_pre_ping=True, hide_parameters=True
            )
        if make_url(url).get_backend_name() == "sqlite":
            timeout = {"timeout": _BUSY_MS / 1000}
            engine = create_engine(url, connect_args=timeout, hide_parameters=True)
            event.listen(engine, "connect", _set_up_sqlite)
            event.listen(engine, "begin", _begin_sqlite)
            return engine
    except (ArgumentError, ModuleNotFoundError) as error:
        raise user_error(
            f"cannot open a database by this URL: {error}",
            where="database",
            hint="write sqlite:////folder/file.db or postgresql://user@host/name",
        ) from None
    raise user_error(
        "the service keeps its state in SQLite or PostgreSQL",
        where="database",
        hint="write sqlite:////folder/file.db or postgresql://user@host/name",
    )


def _set_up_sqlite(connection: Any, _: Any) -> None:
    """Let readers go on beside a writer, and delete what belongs to a deleted row with it."""
    connection.isolation_level = None  # `_begin_sqlite` begins
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.execute(f"PRAGMA busy_timeout={_BUSY_MS}")
    cursor.close()


def _begin_sqlite(connection: Any) -> None:
    """Take the lock of a transaction that will write at once: no other comes between."""
    immediate = connection.get_execution_options().get(_WRITES, True)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")


def _shown(url: str) -> str:
    return make_url(url).render_as_string(hide_password=True)
