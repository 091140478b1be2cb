"""What earlier runs of this user measured: it orders the first guesses of later ones.

One SQLite file in the user's cache folder (`history.db`); nothing leaves the machine. A row is one
probe that ended ok: its knobs, what was estimated and what was measured. Rows are found by the
shape of the model, the method and the device; where versions, driver, the code of the estimates or
the device's measured rates are others by now, a row counts for less. Where the rates could not be
measured in quiet, or a probe was disturbed, nothing is kept. A row only says by how much an
estimate was off: no measurement of an earlier run is ever taken for one of this run.
"""

import contextlib
import json
import math
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.estimate.estimate import Estimate
from autotune.facts import Facts
from autotune.job.job import Job
from autotune.plain_data import to_plain
from autotune.plan.cache import PlanCache, code_version
from autotune.probe.outcome import is_quiet
from autotune.run.expectations import Expectations
from autotune.search.record import Record
from autotune.search.sampler.expected import Expected, Reading
from autotune.search.sampler.params import choice, expected_of
from autotune.space.bind import SearchSpace
from autotune.space.trl_config import resolve_precision

MOST_ROWS = 60
SAME, OTHER_KNOBS, CHANGED = 0.05, 0.10, 0.20
"""Standard deviations of a row's reading: all as it was; knobs that do not vary here had other
values; versions, driver, precision or estimates have changed since."""
_TABLE = """
CREATE TABLE IF NOT EXISTS probes (
    study TEXT, number INTEGER, subject TEXT, circumstances TEXT,
    knobs TEXT, speed REAL, shares TEXT, measured REAL,
    PRIMARY KEY (study, number))
"""


@dataclass(frozen=True, kw_only=True)
class History:
    """The user's store of probes; where it cannot be read or written, there simply is none."""

    path: Path

    @classmethod
    def of_user(cls) -> "History":
        """Beside the user's plans."""
        return cls(path=PlanCache.of_user().path / "history.db")

    def readings(
        self, job: Job, facts: Facts, space: SearchSpace, study: str = ""
    ) -> list[Reading]:
        """Return what is known of the estimates of such a job: the newest rows, without `study`'s
        own."""
        now = circumstances(job, facts)
        if now is None:
            return []
        with contextlib.suppress(sqlite3.Error, OSError, ValueError, KeyError, TypeError):
            with self._open() as database:
                rows = database.execute(
                    "SELECT circumstances, knobs, speed, shares, measured FROM probes "
                    "WHERE subject = ? AND study != ? ORDER BY rowid DESC LIMIT ?",
                    (subject(job, facts), study, MOST_ROWS),
                ).fetchall()
            return [_reading(row, now, space) for row in rows]
        return []

    def keep(
        self,
        study: str,
        job: Job,
        facts: Facts,
        records: Sequence[Record],
        expectations: Expectations,
    ) -> None:
        """Remember the probes of a run that ended ok; those that are there already stay."""
        now = circumstances(job, facts)
        if now is None:
            return
        rows = [
            (study, record.number, subject(job, facts), now, *figures)
            for record in records
            if (figures := _figures(record, expectations.estimates.get(record.candidate.key)))
        ]
        with contextlib.suppress(sqlite3.Error, OSError):
            try:
                self._write(rows)
            except sqlite3.OperationalError:  # locked, full, read-only
                return
            except sqlite3.DatabaseError:  # no database any more: it is begun anew
                self.path.unlink()
                self._write(rows)

    def _write(self, rows: Sequence[tuple[Any, ...]]) -> None:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path.touch(mode=0o600)
        with self._open() as database:
            database.execute(_TABLE)
            marks = ", ".join("?" * 8)
            database.executemany(f"INSERT OR IGNORE INTO probes VALUES ({marks})", rows)

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with (
            contextlib.closing(sqlite3.connect(self.path, timeout=5)) as database,
            database,
        ):
            yield database


def subject(job: Job, facts: Facts) -> str:
    """Return the subject of a row; rows of other subjects are of no use."""
    model = facts.model
    shape = (model.model_type, model.parameters, model.hidden_size, model.layers, model.vocab_size)
    several = [job.devices.total] if job.devices.total > 1 else []
    where = [facts.device.name, facts.device.cores, *several]
    return json.dumps([*shape, job.method, job.tuning, *where])


def circumstances(job: Job, facts: Facts) -> str | None:
    """Return what may change between runs; None where estimates rest on rates that were not
    kept."""
    rates = PlanCache.of_user().ceilings(facts.device.name)
    if rates is None:
        return None
    versions = {name: facts.stack.versions.get(name) for name in ("torch", "transformers", "trl")}
    precision, _ = resolve_precision(job, facts.device)
    circumstance = [versions, facts.device.driver, precision, code_version(), to_plain(rates)]
    return json.dumps(circumstance, sort_keys=True)


def _figures(record: Record, estimate: Estimate | None) -> tuple[Any, ...] | None:
    measurement = record.measurement
    if measurement is None or measurement.outcome != "ok" or not measurement.tokens_per_s:
        return None
    if not is_quiet(measurement.processor_wait_share):
        return None
    expected = expected_of(estimate)
    if expected.speed is None:
        return None
    knobs, shares = json.dumps(record.candidate.knobs), json.dumps(expected.shares)
    return knobs, expected.speed, shares, measurement.tokens_per_s


def _reading(row: Sequence[Any], now: str, space: SearchSpace) -> Reading:
    when, knobs, speed, shares, measurement = row
    values = json.loads(knobs)
    free = [knob.name for knob in space.free_knobs]
    pinned = {knob.name: knob.values for knob in space.knobs if knob.name not in free}
    sd = (
        SAME
        if all(values.get(name) in values_here for name, values_here in pinned.items())
        else OTHER_KNOBS
    )
    return Reading(
        params={name: choice(values.get(name)) for name in free},
        expected=Expected(speed=float(speed), shares=tuple(json.loads(shares))),
        log_speed=math.log(measurement),
        sd=sd if when == now else CHANGED,
    )
