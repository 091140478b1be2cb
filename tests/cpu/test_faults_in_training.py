"""Faults at each place of a real training: named, with where they came, and the run goes on."""

import json
import os
from pathlib import Path

import pytest

from autotune.probe import measure
from tests.cpu.conftest import Bench, Command
from tests.cpu.test_run import FEW, write_job

WORKERS = "tests.cpu.workers:"


@pytest.mark.parametrize("place", ["forward pass", "backward pass", "optimizer step"])
def test_memory_that_runs_out_in_a_step_is_named_with_its_part(
    bench: Bench, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = f"{WORKERS}no_room_in_the_{place.replace(' ', '_')}"
    with monkeypatch.context() as patched:
        patched.setattr(measure, "WORKER", worker)
        found = bench.probe(place, per_device_train_batch_size=2)
    assert found.outcome == "oom", found.reason
    assert found.reason.startswith(f"RuntimeError in the {place}: ")
    assert "can't allocate memory" in found.reason
    assert found.failure and found.failure["stage"] == "train"


def test_a_data_worker_that_ends_by_itself_is_a_crash_with_its_name(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(measure, "WORKER", f"{WORKERS}a_data_worker_ends")
        found = bench.probe("worker", dataloader_num_workers=2)
    assert found.outcome == "crash", found.reason
    assert "DataLoader worker (pid(s) " in found.reason and "exited unexpectedly" in found.reason
    assert bench.probe("after", per_device_train_batch_size=1).outcome == "ok"


NO_ROOM = """
import sys, threading, time

def spoil():
    while not hasattr(sys.modules.get("transformers.trainer"), "Trainer"):
        time.sleep(0.02)
    import os, torch
    trainer, mark = sys.modules["transformers.trainer"].Trainer, os.environ["NO_ROOM"]

    def no_room(*_, **__):
        open(mark, "w").close()
        torch.empty(2**60, dtype=torch.uint8)

    name = "_save" if os.path.exists(mark) else "evaluation_loop"
    setattr(trainer, name, no_room)

threading.Thread(target=spoil, daemon=True).start()
"""
"""The first launch finds no memory in its evaluation, the second none in its save."""


@pytest.mark.nightly("launches")
def test_memory_that_runs_out_in_an_evaluation_or_a_save_is_named_so(
    autotune: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = {**FEW, "gradient_checkpointing": False, "per_device_train_batch_size": 4}
    write_job(autotune.folder, budget={"probes": 1, "minutes": 5}, fixed=one)
    (tmp_path / "spoilt").mkdir()
    (tmp_path / "spoilt" / "sitecustomize.py").write_text(NO_ROOM, encoding="utf-8")
    monkeypatch.setenv("NO_ROOM", str(tmp_path / "mark"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "spoilt"), prepend=os.pathsep)
    result = json.loads(autotune("run", "job.yaml", "--out", "run", "--json", expect=1))
    again = json.loads(autotune("verify", "run", "--json", expect=1))
    said = "the launch ran out of memory in its"
    assert result["verification"]["reason"].startswith(f"{said} evaluation: RuntimeError: ")
    assert again["reason"].startswith(f"{said} save: RuntimeError: ")
    assert (result["outcome"], again["verified"]) == ("recommended", False)
