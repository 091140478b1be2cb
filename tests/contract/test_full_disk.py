"""A disk that is full, under a probe or the user's cache: a real file system of two megabytes."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from staging import Stage

from autotune.errors import MachineError
from autotune.job.job import Devices
from autotune.probe import measure
from autotune.process.child_server import ChildServer
from autotune.process.device_lock import devices_locked
from autotune.space.trl_config import settings
from tests.unit.builders import make_candidate, make_facts, make_job
from tests.unit.calling import call

JOB = {
    "model": "qwen2.5-0.5b",
    "dataset": {"lengths": {"max": 64}},
    "global_batch_size": 1,
    "fixed": {
        "activation_offloading": False,
        "dataloader_num_workers": 0,
        "expandable_segments": False,
        "gradient_checkpointing": False,
        "loss_type": "nll",
        "padding_free": False,
    },
}

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2M", "none", folder], capture_output=True, text=True
    )
    if mount.returncode:
        pytest.skip(f"nothing can be mounted here: {mount.stderr.strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_crash_on_a_full_disk_says_nothing_of_its_candidate(
    shared_server: ChildServer, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "WORKER", "stubs:fills_its_disk")
    stage = Stage(shared_server, small_disk / "probe")
    task = measure.probe_task(
        settings(make_job(), make_facts(), make_candidate()), rows=small_disk, limit=2**40
    )
    with pytest.raises(MachineError) as raised:
        measure.probed(stage.server, stage.folder, task.plain())
    (problem,) = raised.value.problems
    assert (problem.where, problem.what) == (str(small_disk / "probe"), "the disk is full")
    assert "resumed" in (problem.hint or "")
    assert not stage.folder.reply.exists()
    assert not stage.folder.measurement.exists()


def fill(disk: Path) -> None:
    with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


@pytest.mark.nightly("process")
def test_a_plan_with_a_home_and_a_cache_that_are_full_answers_all_the_same(
    small_disk: Path, tmp_path: Path
) -> None:
    fill(small_disk)
    (tmp_path / "job.yaml").write_text(json.dumps(JOB), encoding="utf-8")
    variables = ("HOME", "XDG_CACHE_HOME", "AUTOTUNE_CACHE")
    done = subprocess.run(
        [sys.executable, "-m", "autotune", "plan", "job.yaml", "--device", "rtx-4090", "--json"],
        cwd=tmp_path,
        env={**os.environ, **dict.fromkeys(variables, str(small_disk))},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["answer"]["knobs"]
    assert "Traceback" not in done.stderr
    kept = [file for file in small_disk.rglob("*") if file.is_file() and file.stat().st_size]
    assert kept == [small_disk / "filler"]


def test_devices_are_used_where_no_lock_can_be_written(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(small_disk)
    monkeypatch.setenv("AUTOTUNE_CACHE", str(small_disk))
    with devices_locked(Devices(kind="cpu"), small_disk, waits=pytest.fail):
        pass


def test_a_doctor_on_a_full_disk_says_so_and_goes_on(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(small_disk)
    monkeypatch.setattr(tempfile, "tempdir", str(small_disk))
    done = call("doctor", "--json")
    found = {f["name"]: f for f in json.loads(done.stdout)["findings"]}
    assert done.exit_code == 1
    assert found["temporary files"]["state"] == "fail"
    assert found["temporary files"]["found"] == f"0 B free in {small_disk}"
    assert found["temporary files"]["remedy"].endswith("export TMPDIR=/path")
    assert "before it began: [Errno 28] No space left" in found["imports"]["found"]
    assert found["driver"]["state"] == "ok"
