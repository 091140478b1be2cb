"""A probe whose process somebody else ends: tried again once, then named."""

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from staging import Stage

from autotune.plan import children
from autotune.plan.children import untraced
from autotune.probe import measure
from autotune.probe.protocol import Measurement
from tests.unit.builders import make_candidate, make_facts, make_job

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
        return measure.measure_candidate(
            stage.server,
            stage.folder,
            make_job(),
            make_facts(),
            make_candidate(),
            rows=stage.folder.path,
            output_dir=stage.folder.path,
            limit=2**40,
        )


@pytest.mark.parametrize(
    ("number", "victim"),
    [(signal.SIGKILL, "child"), (signal.SIGTERM, "child"), (signal.SIGKILL, "server")],
)
def test_it_is_tried_again_and_counts(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, number: int, victim: str
) -> None:
    measurement = probed(stage, monkeypatch, 1, number, victim)
    assert (measurement.outcome, measurement.tokens_per_s) == ("ok", 12.0)
    assert measurement.reason.startswith("fine; tried again, as at first somebody else ended ")
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
