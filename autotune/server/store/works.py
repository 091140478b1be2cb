"""Plans and runs: asked for, looked at, searched, cancelled, taken up again, deleted."""

import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Select,
    bindparam,
    delete,
    func,
    literal,
    or_,
    select,
    text,
    update,
)
from sqlalchemy.orm import Session

from autotune.server.store.database import Database
from autotune.server.store.tables import (
    DeletedRow,
    EventRow,
    FileRow,
    SourceRow,
    WorkerRow,
    WorkRow,
)
from autotune.server.store.values import (
    ALIVE_S,
    ENDED,
    Details,
    Kind,
    NewWork,
    State,
    Work,
    as_json,
)

PER_PAGE = 50
_OF_WORK = tuple(WorkRow.__table__.columns[name] for name in Work.model_fields)
_ADDING = 0x6175746F
"""The key of PostgreSQL's lock for those that add works."""
_STATE = select(WorkRow.state).where(WorkRow.id == bindparam("id"))
_KIND = select(WorkRow.kind).where(WorkRow.id == bindparam("id"))
_BY_STATE = (WorkRow.kind, WorkRow.state, WorkRow.outcome)
_COUNTS = select(*_BY_STATE, func.count()).group_by(*_BY_STATE)


@dataclass(frozen=True, kw_only=True)
class Filter:
    """A filter of works; None: any."""

    kind: Kind | None = None
    state: State | None = None
    method: str | None = None
    text: str | None = None
    """A part of the model's or the device's name, or of the id."""


def _filtered(statement: Select[Any], wanted: Filter) -> Select[Any]:
    for name in ("kind", "state", "method"):
        value = getattr(wanted, name)
        if value is not None:
            statement = statement.where(getattr(WorkRow, name) == value)
    for word in (wanted.text or "").split():
        columns = (WorkRow.model, WorkRow.device, WorkRow.id, WorkRow.method)
        statement = statement.where(
            or_(*(column.icontains(word, autoescape=True) for column in columns))
        )
    return statement


@dataclass(frozen=True)
class Room:
    """The number of works that may wait: of all users, and of one."""

    all: int
    each: int


class Full(Exception):
    """The queue has no room for another work; it says how many wait."""


class Works:
    """The works of a service."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def check_room(self, room: Room, submitter: str) -> None:
        """Check that another work may wait.

        Raises:
            Full: it may not.
        """
        with self._database.reading() as session:
            _check_room(session, room, submitter)

    def add(self, new: NewWork, room: Room | None = None) -> Work:
        """Put a work into the queue.

        Raises:
            Full: there is no room for it.
        """
        row = WorkRow(
            **new.model_dump(exclude={"arguments", "first_line"}),
            id=secrets.token_hex(8),
            arguments=json.dumps(new.arguments),
            state="queued",
            created=time.time(),
            attempt=0,
            deaths=0,
            stop_wanted=False,
            outcome="",
            events=int(new.first_line is not None),
        )
        with self._database.writing() as session:
            if room is not None:
                _take_turn(session)
                _check_room(session, room, new.submitter)
            session.add(row)
            if new.first_line is not None:
                session.flush()  # the work is there before its event
                first = {"number": 1, "kind": "by_formula", "utc": row.created}
                data = as_json({"text": new.first_line})
                session.add(EventRow(work=row.id, data=data, **first))
        return work_of(row)

    def get(self, id: str) -> Details | None:
        """Return a work with its details; None: there is none."""
        with self._database.reading() as session:
            row = session.get(WorkRow, id)
            if row is None:
                return None
            names = session.scalars(select(FileRow.name).where(FileRow.work == id)).all()
            return Details(
                **work_of(row).model_dump(),
                job=row.job,
                arguments=json.loads(row.arguments),
                ahead=_ahead(session, row) if row.state == "queued" else None,
                takers=_takers(session, row) if row.state == "queued" else None,
                result=None if row.result is None else json.loads(row.result),
                text=row.text,
                files=sorted(names),
            )

    def state(self, id: str) -> str | None:
        """Return the state of a work; None: there is none."""
        with self._database.connection() as connection:
            return connection.scalar(_STATE, {"id": id})

    def kind(self, id: str) -> str | None:
        """Return whether a work is a plan or a run; None: there is none."""
        with self._database.connection() as connection:
            return connection.scalar(_KIND, {"id": id})

    def deleted(self, ids: Sequence[str]) -> list[str]:
        """Return the ids whose works have been deleted."""
        with self._database.reading() as session:
            return list(session.scalars(select(DeletedRow.id).where(DeletedRow.id.in_(ids))))

    def forget_deleted(self, before: float) -> None:
        """Forget deletions before a time: a worker that was away since then is not told of them,
        and keeps its folders within their limit of size."""
        with self._database.writing() as session:
            session.execute(delete(DeletedRow).where(DeletedRow.time < before))

    def model_config_json(self, id: str) -> str | None:
        """Return the config.json that came with a work."""
        with self._database.reading() as session:
            return session.scalar(select(WorkRow.model_config_json).where(WorkRow.id == id))

    def search(self, wanted: Filter, page: int = 1, per_page: int = PER_PAGE) -> list[Work]:
        """Return a page of works, the newest first, without their results, which may be large."""
        fitting = _filtered(select(*_OF_WORK), wanted).order_by(WorkRow.created.desc())
        with self._database.connection() as connection:
            rows = connection.execute(fitting.offset((page - 1) * per_page).limit(per_page))
            return [Work.model_validate(row._asdict()) for row in rows]

    def count(self, wanted: Filter) -> int:
        """Return how many there are."""
        with self._database.connection() as connection:
            counted = _filtered(select(func.count()).select_from(WorkRow), wanted)
            return connection.scalar(counted) or 0

    def counts(self) -> dict[tuple[str, str, str], int]:
        """Return how many there are of each (kind, state, outcome)."""
        with self._database.connection() as connection:
            rows = connection.execute(_COUNTS)
            return {(kind, state, outcome): count for kind, state, outcome, count in rows}

    def ended_before(self, time: float) -> list[str]:
        """Return the works that ended before a time."""
        with self._database.reading() as session:
            old = select(WorkRow.id).where(WorkRow.state.in_(ENDED), WorkRow.ended < time)
            return list(session.scalars(old))

    def oldest_ended(self, most: int, most_bytes: int) -> list[str]:
        """Return the oldest works that have ended, once there are more than so many works or bytes
        in all."""
        files = select(func.sum(func.length(FileRow.content)))
        sizes: list[ColumnElement[Any]] = [
            files.where(FileRow.work == WorkRow.id).scalar_subquery()
        ]
        for column in (WorkRow.job, WorkRow.model_config_json, WorkRow.result, WorkRow.text):
            sizes.append(func.length(column))
        size = sum((func.coalesce(one, 0) for one in sizes), start=literal(0))
        newest = select(WorkRow.id, WorkRow.state, size).order_by(WorkRow.created.desc())
        excess, count, total = [], 0, 0
        with self._database.reading() as session:
            for id, state, length in session.execute(newest):
                count, total = count + 1, total + length
                if state in ENDED and (count > most or total > most_bytes):
                    excess.append(id)
        return excess

    def file(self, id: str, name: str) -> bytes | None:
        """Return a file of a work; None: there is none of that name."""
        with self._database.reading() as session:
            return session.scalar(
                select(FileRow.content).where(FileRow.work == id, FileRow.name == name)
            )

    def cancel(self, id: str) -> bool:
        """Cancel a work: at once where it waits, else through its worker; False: it has ended."""
        with self._database.writing() as session:
            waiting = update(WorkRow).where(WorkRow.id == id, WorkRow.state == "queued")
            ended = session.execute(
                waiting.values(state="cancelled", ended=time.time(), lease_until=None)
            )
            if ended.rowcount:  # type: ignore[attr-defined]
                return True
            running = update(WorkRow).where(WorkRow.id == id, WorkRow.state == "running")
            return bool(session.execute(running.values(stop_wanted=True)).rowcount)  # type: ignore[attr-defined]

    def resume(self, id: str, room: Room | None = None) -> bool:
        """Put a work into the queue again; False: it is not `resumable`.

        Raises:
            Full: there is no room for it.
        """
        with self._database.writing() as session:
            row = session.get(WorkRow, id)
            if row is None or not work_of(row).resumable:
                return False
            if room is not None:
                _take_turn(session)
                _check_room(session, room, row.submitter)
            again = update(WorkRow).where(WorkRow.id == id, WorkRow.state == row.state)
            values: dict[str, Any] = {
                "state": "queued",
                "stop_wanted": False,
                "outcome": "",
                "deaths": 0,
            }
            values |= dict.fromkeys(("ended", "error", "exit_code"))
            return bool(session.execute(again.values(**values)).rowcount)  # type: ignore[attr-defined]

    def delete(self, ids: Sequence[str]) -> int:
        """Delete works that have ended, with all that belongs to them, and return how many."""
        with self._database.writing() as session:
            ended = select(WorkRow.id).where(WorkRow.id.in_(ids), WorkRow.state.in_(ENDED))
            deleted = list(session.scalars(ended))
            for table in (EventRow, SourceRow, FileRow):
                session.execute(delete(table).where(table.work.in_(deleted)))
            session.execute(delete(WorkRow).where(WorkRow.id.in_(deleted)))
            variations = update(WorkRow).where(WorkRow.parent.in_(deleted))
            session.execute(variations.values(parent=None))
            session.add_all(DeletedRow(id=id, time=time.time()) for id in deleted)
            return len(deleted)


def work_of(row: WorkRow) -> Work:
    """Convert a row to the work that the API shows."""
    return Work.model_validate({name: getattr(row, name) for name in Work.model_fields})


def _take_turn(session: Session) -> None:
    """Wait for other transactions that add works, so that none comes between counting and adding.
    SQLite has one writer anyway."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADDING})


def _check_room(session: Session, room: Room, submitter: str) -> None:
    waiting = select(func.count()).select_from(WorkRow).where(WorkRow.state == "queued")
    if (session.scalar(waiting) or 0) >= room.all:
        raise Full(f"{room.all} works wait already")
    if (session.scalar(waiting.where(WorkRow.submitter == submitter)) or 0) >= room.each:
        raise Full(f"{room.each} works of yours wait already")


def _ahead(session: Session, row: WorkRow) -> int:
    before = select(func.count()).where(
        WorkRow.state == "queued", WorkRow.kind == row.kind, WorkRow.created < row.created
    )
    return session.scalar(before) or 0


def suits(device_kind: Any, devices: Any) -> ColumnElement[bool]:
    """Return the condition that a worker can do a work: a run by the kind and the number of its
    devices, values or columns; any worker can do plans."""
    kind = WorkRow.device_kind.in_(("auto", device_kind))
    return or_(WorkRow.kind == "plan", kind & (WorkRow.device_count <= devices))


def _takers(session: Session, row: WorkRow) -> int:
    able = suits(WorkerRow.device_kind, WorkerRow.devices)
    workers = select(func.count()).select_from(WorkerRow).join(WorkRow, able)
    alive = WorkerRow.seen > time.time() - ALIVE_S
    return session.scalar(workers.where(alive, WorkRow.id == row.id)) or 0
