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
