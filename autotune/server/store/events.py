"""Events of works: taken in the order of their files, each once, numbered without gaps."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import Field
from sqlalchemy import bindparam, select

from autotune.server.store.database import Database
from autotune.server.store.tables import EventRow, SourceRow, WorkRow
from autotune.server.store.values import Event, Value, as_json

MOST = 20_000
"""Events that are kept of one work: a run has some hundreds."""
AT_ONCE = 500
"""Events that are read together."""
_AFTER = (
    select(*EventRow.__table__.columns)
    .where(EventRow.work == bindparam("work"), EventRow.number > bindparam("last"))
    .order_by(EventRow.number)
    .limit(AT_ONCE)
)


class Line(Value):
    """A line of a file of events."""

    utc: float = Field(allow_inf_nan=False)
    kind: str = Field(pattern=r"^\w{1,32}$")
    data: dict[str, Any]


class Lines(Value):
    """Lines of a file of events."""

    worker: str = Field(max_length=128)
    attempt: int
    record: int | None = None
    """The attempt that wrote the file, where that is an earlier one."""
    source: str = Field(pattern=r"^\w{1,32}$")
    first: int = Field(ge=0)
    """The place of the first line in the file, from 0 on."""
    lines: list[Line] = Field(max_length=1000)


class Events:
    """The events of all works."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.on_new: Callable[[Sequence[Line]], None] = lambda _: None
        """A listener to the lines that arrive, each once."""

    def take(self, id: str, lines: Lines) -> int | None:
        """Add lines of a file, of which some may have come before.

        Returns:
            How many lines of the file are here now; None: the work is not this worker's.
        """
        new: list[Line] = []
        with self._database.writing() as session:
            work = session.get(WorkRow, id)
            if work is None or (work.worker, work.attempt) != (lines.worker, lines.attempt):
                return None
            record = lines.attempt if lines.record is None else lines.record
            row = session.get(SourceRow, (id, record, lines.source))
            if row is None:
                row = SourceRow(work=id, attempt=record, name=lines.source, lines=0)
                session.add(row)
            begun = lines.first <= row.lines
            new += lines.lines[max(row.lines - lines.first, 0) :] if begun else []
            for line in new:
                row.lines += 1
                if work.events < MOST:
                    work.events += 1
                    session.add(_row(id, work.events, line))
            taken = row.lines
        self.on_new(new)
        return taken

    def after(self, id: str, number: int) -> list[Event]:
        """Return the next events after a number, at most `AT_ONCE`."""
        with self._database.connection() as connection:
            return [
                Event(number=row.number, utc=row.utc, kind=row.kind, data=json.loads(row.data))
                for row in connection.execute(_AFTER, {"work": id, "last": number})
            ]


def _row(id: str, number: int, line: Line) -> EventRow:
    return EventRow(work=id, number=number, utc=line.utc, kind=line.kind, data=as_json(line.data))
