"""A probe beside others that take the cores: its times are theirs, and it says so."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.cpu.conftest import Command
from tests.cpu.test_run import FEW, write_job


@pytest.fixture
def hogs() -> Iterator[None]:
    """A process for each core of this test that takes all it can get."""
    command = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(command) for _ in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.usefixtures("quiet_counts", "hogs")
def test_a_probe_beside_processes_that_take_the_cores_is_busy(autotune: Command) -> None:
    write_job(autotune.folder, fixed=FEW)
    found = json.loads(autotune("probe", "job.yaml", "--json", expect=1))["measurement"]
    assert found["outcome"] == "busy"
    assert found["processor_wait_share"] > 0.2
    assert (
        found["reason"] == f"the machine was busy {found['processor_wait_share']:.0%} of the time"
    )
    assert found["tokens_per_s"] > 0 and found["peak_memory_bytes"] > 0


@pytest.mark.nightly("launches")
@pytest.mark.usefixtures("quiet_counts", "hogs")
def test_noise_that_is_accepted_ranks_and_is_never_called_verified(autotune: Command) -> None:
    write_job(autotune.folder, budget={"probes": 2, "minutes": 5}, fixed=FEW)
    found = json.loads(autotune("run", "job.yaml", "--out", "run", "--accept-noise", "--json"))
    assert found["outcome"] == "recommended" and not found["verified"]
    assert found["reasons"][0].startswith("--accept-noise: the machine was busy ")
    launched = found["verification"]
    assert launched["evaluated"] and launched["saved"] and launched["accepted_noise"] > 0.1
    assert launched["reason"].startswith("the machine was busy ")
    readme = (autotune.folder / "run" / "bundle" / "README.md").read_text(encoding="utf-8")
    assert "- --accept-noise: the machine was busy " in readme and "No: the machine" in readme
    assert "--accept-noise" in autotune("report", "run")
    assert "NOT verified" in autotune("verify", "run", expect=1)
