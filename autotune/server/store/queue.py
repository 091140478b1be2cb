"""The queue: workers lease works, beat while they do them, and report how they ended.

A lease without a beat for `LEASE_S` ends: its work returns to the queue. A worker that was only
late goes on with it while no other has taken it (then `lease_until` of the waiting work is set).
Reports of a work that is another worker's by now are refused.
"""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import bindparam, case, or_, select, update

from autotune.errors import EXIT_DONE
from autotune.server.store.database import Database
from autotune.server.store.tables import FileRow, WorkerRow, WorkRow
from autotune.server.store.values import (
    ALIVE_S,
    ENDS,
    STOPS,
    Beat,
    Ending,
    Kind,
    Lease,
    WorkerInfo,
    as_json,
    kept_text,
)
from autotune.server.store.works import suits

LEASE_S = ALIVE_S
SILENT_S = 5.0
"""A lease that its worker, which is there, has not kept for so long and does not name is nobody's:
the worker was started anew, or the answer to it was lost. Requests may come out of order."""
DEATHS = 3
"""A work is not tried again after so many deaths of its workers."""
_OF_WORKER = (WorkerRow.__table__.columns[name] for name in WorkerInfo.model_fields)
_RECENT = select(*_OF_WORKER).where(WorkerRow.seen > bindparam("since"))
_LATE = (WorkRow.state == "queued") & (WorkRow.lease_until > 0.0)
"""The lease has ended, and its worker may go on: it is not known to be dead."""


class Queue:
    """The works that wait or are being done."""

    def __init__(self, database: Database, study: str | None = None) -> None:
        self._database, self._study = database, study

    def register(self, worker: WorkerInfo, works: Sequence[str]) -> None:
        """Remember a worker, and the works that it does. What was leased to its name besides is
        known to be dead after `SILENT_S`, and returns to the queue at the next `expire`."""
        now = time.time()
        own = (WorkRow.worker == worker.name) & (WorkRow.lease_until < now + LEASE_S - SILENT_S)
        lost = update(WorkRow).where(own, WorkRow.state == "running", WorkRow.id.not_in(works))
        with self._database.writing() as session:
            session.merge(WorkerRow(**worker.model_dump(), seen=now))
            session.execute(lost.values(lease_until=0.0))

    def workers(self) -> list[WorkerInfo]:
        """Return the workers that reported lately."""
        with self._database.connection() as connection:
            rows = connection.execute(_RECENT, {"since": time.time() - LEASE_S})
            return [WorkerInfo.model_validate(row._asdict()) for row in rows]

    def lease(self, worker: WorkerInfo, kinds: Sequence[Kind]) -> Lease | None:
        """Lease the next work that a worker can do to it; None: there is none."""
        now = time.time()
        wanted = select(WorkRow).where(
            WorkRow.state == "queued",
            WorkRow.kind.in_(kinds),
            suits(worker.device_kind, worker.devices),
        )
        first = wanted.order_by(WorkRow.created).limit(1).with_for_update(skip_locked=True)
        with self._database.writing() as session:
            row = session.scalar(first)
            if row is None:
                return None
            row.state, row.worker = "running", worker.name
            row.lease_until, row.attempt = now + LEASE_S, row.attempt + 1
            row.started = row.started or now
            if row.kind == "run":
                row.device = worker.device_name
            return Lease(
                id=row.id,
                kind=row.kind,  # type: ignore[arg-type]
                job=row.job,
                model_config_json=row.model_config_json,
                arguments=json.loads(row.arguments),
                devices=row.device_count,
                attempt=row.attempt,
                study=self._study if row.kind == "run" else None,
            )

    def beat(self, worker: str, ids: Sequence[str]) -> list[Beat]:
        """Keep a worker's leases, also those that have ended while nobody took the work, and return
        which of its works are to be stopped."""
        if not ids:
            return []
        own = WorkRow.id.in_(ids) & (WorkRow.worker == worker)
        kept = update(WorkRow).where(own, or_(WorkRow.state == "running", _LATE))
        values = {"state": "running", "lease_until": time.time() + LEASE_S}
        deaths = WorkRow.deaths - case((_LATE, 1), else_=0)
        held = select(WorkRow.id, WorkRow.stop_wanted).where(own, WorkRow.state == "running")
        with self._database.writing() as session:
            session.execute(kept.values(**values, deaths=deaths))
            stops = {row.id: row.stop_wanted for row in session.execute(held)}
        return [Beat(id=id, stop=stops.get(id, True), lost=id not in stops) for id in ids]

    def finish(self, worker: str, id: str, ending: Ending) -> bool:
        """Record how a work ended; False: it is not this worker's any more."""
        with self._database.writing() as session:
            row = session.get(WorkRow, id, with_for_update=True)
            if row is None or row.worker != worker or row.attempt != ending.attempt:
                return False
            late = row.state == "queued" and bool(row.lease_until)
            if row.state != "running" and not late:
                return row.state != "queued"  # reported twice: the first answer was lost
            row.lease_until, row.deaths = None, row.deaths - late
            if ending.interrupted and not row.stop_wanted:
                row.state = "queued"
                return True
            _conclude(row, ending)
        return True

    def keep_file(self, worker: str, id: str, name: str, content: bytes) -> bool:
        """Keep a file of a work; False: the work is not this worker's."""
        with self._database.writing() as session:
            row = session.get(WorkRow, id)
            if row is None or row.worker != worker:
                return False
            session.merge(FileRow(work=id, name=name, content=content))
        return True

    def renew(self) -> None:
        """Give all workers time to report again: the service was away, not they."""
        with self._database.writing() as session:
            running = update(WorkRow).where(WorkRow.state == "running")
            session.execute(running.values(lease_until=time.time() + LEASE_S))

    def expire(self) -> list[str]:
        """Put works whose lease has ended back into the queue, and return their ids."""
        now = time.time()
        with self._database.writing() as session:
            dead = select(WorkRow).where(WorkRow.state == "running", WorkRow.lease_until < now)
            rows = session.scalars(dead.with_for_update()).all()
            for row in rows:
                _return(row, now)
            return [row.id for row in rows]


def _conclude(row: WorkRow, ending: Ending) -> None:
    result = ending.result or {}
    row.ended, row.exit_code, row.text = time.time(), ending.exit_code, ending.text
    row.result = None if ending.result is None else as_json(ending.result)
    row.error = ending.error or None
    stopped = row.stop_wanted and ending.exit_code in STOPS
    done = ending.exit_code in ENDS
    row.state = "cancelled" if stopped else "done" if done else "failed"
    outcome = result.get("outcome") or (_plan_outcome(ending.exit_code, result) if done else "")
    row.outcome = kept_text(outcome)[:32] if isinstance(outcome, str) else ""
    best = result.get("answer") or result.get("measurement")
    row.tokens_per_s = _number(best, "tokens_per_s")
    peak_bytes = _number(best, "peak_memory_bytes")
    row.peak_memory_bytes = None if peak_bytes is None else int(peak_bytes)
    device = result.get("device")
    if isinstance(device, dict) and isinstance(device.get("name"), str):
        row.device = kept_text(device["name"])[:128]


def _number(data: Any, name: str) -> float | None:
    """Return a finite number of a command's result; None: there is none."""
    value = data.get(name) if isinstance(data, dict) else None
    known = isinstance(value, int | float) and abs(value) < 1e18
    return value if known else None


def _plan_outcome(exit_code: int, result: Mapping[str, Any]) -> str:
    """Return `fits` or `nothing_fits`; of several machines, by one on which it is safe."""
    machines = result.get("machines")
    machines = machines if isinstance(machines, list) else []
    safe = any(isinstance(machine, dict) and machine.get("safe") is True for machine in machines)
    return "fits" if safe or exit_code == EXIT_DONE else "nothing_fits"


def _return(row: WorkRow, now: float) -> None:
    row.deaths += 1
    if row.stop_wanted:
        row.state, row.ended, row.lease_until = "cancelled", now, None
    elif row.deaths >= DEATHS:
        row.state, row.ended, row.lease_until = "failed", now, None
        row.error = f"its worker died {row.deaths} times; look at the worker's log, then resume it"
    else:
        row.state = "queued"
