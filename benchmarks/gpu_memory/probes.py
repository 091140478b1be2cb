"""Probe what was predicted, through the product's own probe; a row after each."""

import hashlib
import json
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autotune.errors import machine_error, user_error
from autotune.facts import Facts, devices
from autotune.job.job import Job
from autotune.probe.measure import probe_task, probed
from autotune.probe.protocol import Measurement
from autotune.probe.survey import memory_limit, survey
from autotune.process.child_server import ChildServer
from autotune.process.run_folder import RunFolder
from autotune.space.knobs import Candidate, from_knobs
from autotune.space.trl_config import settings
from benchmarks.gpu_memory.predictions import (
    Predictions,
    Row,
    described,
    opened,
    read_rows,
    serving,
    told,
)

NOT_PROBED = {"busy", "interrupted"}
"""Outcomes that say nothing of the candidate: it is probed again."""
MAX_BUSY = 3
GIB = 2**30


class Rows:
    """The file of rows: what was measured in earlier calls, and where the next row goes.

    Raises:
        UserError: its rows were measured against other predictions.
    """

    def __init__(self, file: Path, predictions: Predictions):
        self._file = file
        rows = read_rows(_whole(file)) if file.exists() else []
        self.fingerprint = fingerprint(predictions)
        for about in (row["about"] for row in rows if "about" in row):
            if about.get("predictions_sha256") != self.fingerprint:
                raise user_error(
                    "the rows there were measured against other predictions",
                    where=str(file),
                    hint="name another OUT, or the file of predictions that they belong to",
                )
        self.probed = [row for row in rows if "measurement" in row]

    def append(self, row: Row) -> None:
        """Keep a row now: the next probe may be the last."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, sort_keys=True) + "\n")
        if "measurement" in row:
            self.probed.append(row)

    def missing(self, predictions: Predictions) -> list[Row]:
        """The predictions that have not been measured yet, in their order."""
        done = {
            identity(row) for row in self.probed if row["measurement"]["outcome"] not in NOT_PROBED
        }
        return [row for row in predictions.rows if identity(row) not in done]


def _whole(file: Path) -> Path:
    """The file without the half line that a killed process may have left at its end."""
    data = file.read_bytes()
    if not data.endswith(b"\n"):
        file.write_bytes(data[: data.rfind(b"\n") + 1])
    return file


def identity(row: Row) -> tuple[str, str]:
    """Which candidate of which job a row is of."""
    return row["case"], json.dumps(row["knobs"], sort_keys=True)


def fingerprint(predictions: Predictions) -> str:
    """The same text for the same predictions."""
    text = json.dumps([predictions.about, *predictions.rows], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


class Bench:
    """Jobs that are opened when they are first needed, and a server for all of them."""

    def __init__(self, about: Row, scratch: Path, server: ChildServer):
        self._about, self._scratch, self._server = about, scratch, server
        self._known: dict[str, tuple[Job, Facts, RunFolder]] = {}
        self._probes: Counter[str] = Counter()

    def _open(self, case: str) -> tuple[Job, Facts, RunFolder]:
        if case not in self._known:
            told = self._about["jobs"][case]
            model = self._about["models"][told["model"]]
            job, _ = opened(self._scratch / case, model, told["job"])
            run = RunFolder(path=self._scratch / case / "run")
            run.path.mkdir(parents=True, exist_ok=True)
            self._known[case] = (job, survey(job, run, self._server), run)
        return self._known[case]

    def probe(self, case: str, candidate: Candidate) -> Measurement:
        """Measure a candidate under the limit that a run of its job would set."""
        job, facts, run = self._open(case)
        self._probes[case] += 1
        limit = memory_limit(job, facts.device)
        chosen = settings(job, facts, candidate, str(run.output))
        task = probe_task(chosen, rows=run.rows, limit=limit)
        return probed(self._server, run.probe(self._probes[case]), task.plain())


def check_device(predictions: Predictions) -> devices.DeviceFacts:
    """The device that the jobs ask for.

    Raises:
        MachineError: it is not there.
    """
    kinds = {told["job"]["devices"]["kind"] for told in predictions.about["jobs"].values()}
    return devices.detect(max(kinds), 0)


def measure(predictions: Predictions, rows: Rows, minutes: float | None, scratch: Path) -> None:
    """Probe what is missing until it is done or the time is up.

    Raises:
        MachineError: the device is not there, is in use, or has too little memory.
    """
    missing = rows.missing(predictions)
    if not missing:
        return
    device = check_device(predictions)
    ends = time.monotonic() + 60 * minutes if minutes is not None else float("inf")
    rows.append({"about": {**told(), **described(device), "predictions_sha256": rows.fingerprint}})
    if time.monotonic() >= ends:
        return
    with serving(scratch) as server:
        _probe_all(Bench(predictions.about, scratch, server), missing, rows, ends)


def _probe_all(bench: Bench, missing: Sequence[Row], rows: Rows, ends: float) -> None:
    busy = 0
    for number, row in enumerate(missing, start=1):
        if time.monotonic() >= ends:
            print(f"memory: the time is up; {len(missing) - number + 1} are left", flush=True)
            return
        began = time.monotonic()
        measured = bench.probe(row["case"], from_knobs(row["knobs"]))
        seconds = round(time.monotonic() - began, 2)
        rows.append({**row, "measurement": measured.plain(), "seconds": seconds})
        print(f"memory: {number} of {len(missing)}: {_line(row, measured)}", flush=True)
        busy = busy + 1 if measured.outcome == "busy" else 0
        if busy >= MAX_BUSY:
            raise machine_error(measured.reason, hint="end them, and call this again")


def _line(row: Row, measured: Measurement) -> str:
    estimate: dict[str, Any] = row["estimate"]
    peak = measured.peak_memory_bytes
    found = "-" if peak is None else f"{peak / GIB:.2f}"
    return (
        f"{row['case']}: {measured.outcome}, {found} GiB of {row['limit_bytes'] / GIB:.0f}; "
        f"expected {estimate['peak_memory_bytes'] / GIB:.2f}, p(oom) {estimate['p_oom']:.2f}; "
        f"{measured.seconds:.0f} s"
    )
