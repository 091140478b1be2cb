"""A probe or a launch that somebody else ends: tried again once, then named."""

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from staging import Stage
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from autotune.errors import MachineError
from autotune.plan import children
from autotune.plan.children import untraced
from autotune.probe import measure
from autotune.probe.protocol import Measurement
from autotune.process.limits import LaunchReport
from autotune.process.run_folder import RunFolder
from autotune.run.bundle_launch import BundleLaunch, Stages
from autotune.run.deadline import Deadline
from autotune.search.recommend import Ranked
from autotune.space.trl_config import settings
from autotune.training.rehearsal import RehearsalReply
from tests.unit.builders import make_candidate, make_facts, make_job, ok

WORKER = "stubs:waits_to_be_killed"
OK = {"outcome": "ok", "reason": "fine", "tokens_per_s": 12.0, "peak_memory_bytes": 9}


def parent_of(pid: int) -> int:
    text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    return int(text.rpartition(")")[2].split()[1])


def killing(stage: Stage, times: int, number: int, victim: str) -> None:
    """Ends so many processes of the probe from outside, or the server that they are forked from."""
    for count in range(times):
        deadline = time.monotonic() + 20
        while not (stage.folder.path / "pids").exists() or len(stage.pids()) <= count:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        pid = stage.pids()[count]
        os.kill(pid if victim == "child" else parent_of(pid), number)


@contextlib.contextmanager
def ended(stage: Stage, times: int, number: int, victim: str, reply: object) -> Iterator[None]:
    """Within this block the worker's process is ended so many times before it replies."""
    stage.folder.path.mkdir(parents=True)
    settings = stage.folder.path / "settings.json"
    settings.write_text(json.dumps({"times": times, "reply": reply}), encoding="utf-8")
    killer = threading.Thread(target=killing, args=(stage, times, number, victim))
    killer.start()
    try:
        yield
    finally:
        killer.join()


def probed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, times: int, number: int, victim: str
) -> Measurement:
    """The measurement of a candidate whose process is ended so many times."""
    monkeypatch.setattr(measure, "WORKER", WORKER)
    with ended(stage, times, number, victim, OK):
        chosen = settings(make_job(), make_facts(), make_candidate())
        task = measure.probe_task(chosen, rows=stage.folder.path, limit=2**40)
        return measure.probed(stage.server, stage.folder, task.plain())


@pytest.mark.parametrize(
    ("number", "victim"),
    [(signal.SIGKILL, "child"), (signal.SIGTERM, "child"), (signal.SIGKILL, "server")],
)
def test_it_is_tried_again_and_counts(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, number: int, victim: str
) -> None:
    measurement = probed(stage, monkeypatch, 1, number, victim)
    assert (measurement.outcome, measurement.tokens_per_s) == ("ok", 12.0)
    assert measurement.reason.startswith("fine; tried again, as at first another process ended ")
    kept = json.loads(stage.folder.measurement.read_text(encoding="utf-8"))
    assert kept == measurement.plain()
    assert len(stage.pids()) == 2


@pytest.mark.parametrize("victim", ["child", "server"])
def test_the_second_time_it_is_a_crash(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, victim: str
) -> None:
    measurement = probed(stage, monkeypatch, 2, signal.SIGKILL, victim)
    assert measurement.outcome == "crash"
    assert measurement.reason.endswith(", twice: something ends it each time")
    assert len(stage.pids()) == 2


@pytest.mark.parametrize(("times", "said"), [(1, "fine"), (2, "the trace ended without an answer")])
def test_a_trace_is_tried_again_too(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, times: int, said: str
) -> None:
    monkeypatch.setattr(children, "WORKER", WORKER)
    task = SimpleNamespace(request=SimpleNamespace(plain=dict))
    count = SimpleNamespace(watch=None, ended=lambda: None)
    with ended(stage, times, signal.SIGKILL, "child", untraced("fine").plain()):
        reply = children._in_child(task, stage.server, stage.folder.path, count, threading.Event())
    assert (reply.problem or "").startswith(said)
    assert len(stage.pids()) == 2


def launched(folder: Path, times: int, number: int) -> LaunchReport:
    """How a launch goes whose command is ended so many times; then it ends well."""
    run = RunFolder(path=folder)
    run.bundle.mkdir()
    run.verification.mkdir()
    script = f'echo $$ >> "{folder}/pids"; (( $(wc -l < "{folder}/pids") > {times} )) || sleep 60\n'
    run.launch.write_text(script, encoding="utf-8")
    launch = BundleLaunch(
        run=run,
        launched=settings(make_job(), make_facts(), make_candidate()),
        rehearsal=RehearsalReply(untimed=2, timed=4, sizes=None),
        deadline=Deadline(),
        stages=Stages(lambda *_: None),
    )
    chosen = Ranked(number=0, candidate=make_candidate(), measurement=ok(100.0, 2**30))
    stage: Any = SimpleNamespace(folder=SimpleNamespace(path=folder), pids=lambda: pids(folder))
    killer = threading.Thread(target=killing, args=(stage, times, number, "child"))
    killer.start()
    try:
        return launch.undisturbed(chosen)[0]
    finally:
        killer.join()


def pids(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "pids").read_text(encoding="ascii").split()]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_launch_is_tried_again(tmp_path: Path, number: int) -> None:
    report = launched(tmp_path, 1, number)
    assert (report.exit_code, report.foreign_signal, len(pids(tmp_path))) == (0, None, 2)


def test_a_launch_that_is_ended_twice_says_nothing_of_its_bundle(tmp_path: Path) -> None:
    said = "ended the launch by SIGTERM, twice: that says nothing about the bundle"
    with pytest.raises(MachineError, match=said):
        launched(tmp_path, 2, signal.SIGTERM)
    assert len(pids(tmp_path)) == 2


def failed(local_rank: int, exit_code: int, when: int) -> ProcessFailure:
    failure = ProcessFailure(local_rank, pid=7, exitcode=exit_code, error_file="<none>")
    failure.timestamp = when
    return failure


def ranks_failed(*exit_codes: int) -> str:
    failures = {n: failed(n, code, n) for n, code in enumerate(exit_codes)}
    return str(ChildFailedError("train", failures))


@pytest.mark.parametrize(
    ("said", "number"),
    [
        (str(subprocess.CalledProcessError(-9, ["python"])), signal.SIGKILL),
        (str(subprocess.CalledProcessError(-11, ["python"])), None),
        (str(subprocess.CalledProcessError(1, ["python"])), None),
        (ranks_failed(-15, 1), signal.SIGTERM),
        (ranks_failed(1, -15), None),
        (ranks_failed(-6, -15), None),
        ("api.SignalException: Process 7 got signal: 15", signal.SIGTERM),
        ("Killed", None),
    ],
)
def test_launchers_tell_how_their_process_ended(said: str, number: int | None) -> None:
    lines = tuple((1.0, line) for line in [*said.splitlines(), "", "the last line"])
    report = LaunchReport(
        exit_code=1,
        timed_out=False,
        seconds=1.0,
        peak_resident_bytes=1,
        peak_gpu_bytes=None,
        lines=lines,
    )
    assert report.foreign_signal == number
    assert replace(report, memory_kills=1).foreign_signal is None
    assert replace(report, timed_out=True).foreign_signal is None
