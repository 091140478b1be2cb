"""The queue: workers lease works, beat while they do them, and report how they ended.

A lease without a beat for `LEASE_S` is dead: its work returns to the queue. Reports of a work that
is another worker's by now are refused.
"""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import CursorResult, Row, bindparam, or_, select, update

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
DEATHS = 3
"""A work is not tried again after so many deaths of its workers."""
JUMP_S = 5.0
"""The clock was set, or the machine slept, where it moves by more against the monotonic one."""
_TAKEN = 10
"""Works at the head of the queue that a lease tries, where several workers take at once."""
_RECENT = select(*WorkerRow.__table__.columns).where(WorkerRow.seen > bindparam("since"))


class Queue:
    """The works that wait or are being done."""

    def __init__(self, database: Database, study: str | None = None) -> None:
        self._database, self._study = database, study
        self._clock_ahead_s = _clock_ahead_s()

    def register(self, worker: WorkerInfo, replaces: str = "") -> str | None:
        """Remember a worker. Return the name of a living worker that has one of its devices, if
        any.

        Args:
            replaces: an instance of the same name that is known to be dead: its works return to the
                queue at the next `expire`.
        """
        self._notice_set_clock()
        now = time.time()
        with self._database.writing() as session:
            row = session.get(WorkerRow, worker.name)
            if row is not None and replaces and row.instance == replaces:
                row.seen = 0.0
                works = update(WorkRow).where(WorkRow.state == "running")
                session.execute(works.where(WorkRow.worker == worker.name).values(lease_until=0.0))
            for row in session.scalars(
                select(WorkerRow).where(
                    WorkerRow.machine == worker.machine,
                    or_(WorkerRow.name != worker.name, WorkerRow.instance != worker.instance),
                    WorkerRow.device_kind == worker.device_kind,
                    WorkerRow.seen > now - LEASE_S,
                )
            ):
                if set(json.loads(row.devices)) & set(worker.devices):
                    return row.name
            values = {**worker.model_dump(), "devices": json.dumps(worker.devices), "seen": now}
            session.merge(WorkerRow(**values))
        return None

    def leave(self, worker: str) -> None:
        """Forget a worker that ends: its devices are free at once."""
        with self._database.writing() as session:
            session.execute(update(WorkerRow).where(WorkerRow.name == worker).values(seen=0.0))

    def workers(self) -> list[tuple[WorkerInfo, float]]:
        """Return the workers that reported lately, and when."""
        with self._database.connection() as connection:
            rows = connection.execute(_RECENT, {"since": time.time() - LEASE_S})
            return [(_info(row), row.seen) for row in rows]

    def lease(self, worker: WorkerInfo, kinds: Sequence[Kind]) -> Lease | None:
        """Lease the next work that a worker can do to it; None: there is none."""
        now = time.time()
        wanted = select(WorkRow).where(
            WorkRow.state == "queued",
            WorkRow.kind.in_(kinds),
            suits(worker.device_kind, len(worker.devices)),
        )
        with self._database.writing() as session:
            for row in session.scalars(wanted.order_by(WorkRow.created).limit(_TAKEN)).all():
                taken = update(WorkRow).where(WorkRow.id == row.id, WorkRow.state == "queued")
                values = {
                    "state": "running",
                    "worker": worker.name,
                    "machine": worker.machine,
                    "lease_until": now + LEASE_S,
                    "attempt": row.attempt + 1,
                    "started": row.started or now,
                }
                if row.kind == "run":
                    values["device"] = worker.device_name
                if _changed(session.execute(taken.values(**values))):
                    return Lease(
                        id=row.id,
                        kind=row.kind,  # type: ignore[arg-type]
                        job=row.job,
                        model_config_json=row.model_config_json,
                        arguments=json.loads(row.arguments),
                        attempt=row.attempt,
                        study=self._study if row.kind == "run" else None,
                    )
        return None

    def beat(self, worker: str, ids: Sequence[str]) -> list[Beat]:
        """Keep a worker's leases, and return which of its works are to be stopped."""
        now, beats = time.time(), []
        with self._database.writing() as session:
            for id in ids:
                row = session.get(WorkRow, id)
                lost = row is None or row.state != "running" or row.worker != worker
                if row is not None and not lost:
                    row.lease_until = now + LEASE_S
                stop = lost or (row is not None and row.stop_wanted)
                beats.append(Beat(id=id, stop=stop, lost=lost))
        return beats

    def finish(self, worker: str, id: str, ending: Ending) -> bool:
        """Record how a work ended; False: it is not this worker's any more."""
        with self._database.writing() as session:
            row = session.get(WorkRow, id)
            if row is None or row.worker != worker or row.attempt != ending.attempt:
                return False
            if row.state != "running":
                return row.state != "queued"  # said twice: the answer to the first was lost
            row.lease_until = None
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

    def _notice_set_clock(self) -> None:
        """Give all workers time to report again where the clock was set: their ages are unknown."""
        ahead_s = _clock_ahead_s()
        if abs(ahead_s - self._clock_ahead_s) > JUMP_S:
            self._clock_ahead_s = ahead_s
            self.renew()
            with self._database.writing() as session:
                known = update(WorkerRow).where(WorkerRow.seen > 0.0)
                session.execute(known.values(seen=time.time()))

    def expire(self) -> list[str]:
        """Put works whose worker has died back into the queue, and return their ids."""
        self._notice_set_clock()
        now = time.time()
        with self._database.writing() as session:
            dead = select(WorkRow).where(WorkRow.state == "running", WorkRow.lease_until < now)
            rows = session.scalars(dead).all()
            for row in rows:
                _return(row, now)
            return [row.id for row in rows]


def _clock_ahead_s() -> float:
    """Return how far the wall clock is ahead of the monotonic one."""
    return time.time() - time.monotonic()


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
    """Return whether a plan fits; of several machines, whether it is safe on one, at any price."""
    machines = result.get("machines")
    machines = machines if isinstance(machines, list) else []
    safe = any(isinstance(machine, dict) and machine.get("safe") is True for machine in machines)
    return "fits" if safe or exit_code == EXIT_DONE else "nothing_fits"


def _return(row: WorkRow, now: float) -> None:
    row.lease_until, row.deaths = None, row.deaths + 1
    if row.stop_wanted:
        row.state, row.ended = "cancelled", now
    elif row.deaths >= DEATHS:
        row.state, row.ended = "failed", now
        row.error = f"its worker died {row.deaths} times; look at the worker's log, then resume it"
    else:
        row.state = "queued"


def _info(row: Row[Any]) -> WorkerInfo:
    fields = {name: getattr(row, name) for name in WorkerInfo.model_fields}
    return WorkerInfo.model_validate({**fields, "devices": json.loads(row.devices)})


def _changed(result: Any) -> bool:
    assert isinstance(result, CursorResult)
    return result.rowcount == 1
