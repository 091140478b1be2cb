"""A launch whose trainer somebody else kills."""

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from tests.cpu.conftest import Command
from tests.cpu.test_run import FEW, assert_launched, write_job

pytestmark = pytest.mark.nightly("launches")


def trainer_of(folder: Path) -> int | None:
    """The process in which a bundle of this folder trains: accelerate's child."""
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        started = b"trl.scripts.sft" in command and b"accelerate" not in command.split(b"\0")[2]
        if started and os.fsencode(folder) in command:
            return int(entry.name)
    return None


def kill_trainer(folder: Path, killed: list[int]) -> None:
    """Kills it as soon as it is there, once."""
    deadline = time.monotonic() + 120
    while not killed and time.monotonic() < deadline:
        if pid := trainer_of(folder):
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
        time.sleep(0.05)


def test_a_launch_whose_trainer_is_killed_is_launched_again(autotune: Command) -> None:
    one = {**FEW, "gradient_checkpointing": False, "per_device_train_batch_size": 4}
    write_job(autotune.folder, budget={"probes": 1, "minutes": 5}, fixed=one)
    autotune("run", "job.yaml", "--out", "run", "--no-verify")
    killed: list[int] = []
    killer = threading.Thread(target=kill_trainer, args=(autotune.folder, killed))
    killer.start()
    verification = json.loads(autotune("verify", "run", "--json", expect=None))
    killer.join()
    assert len(killed) == 1
    assert_launched(verification)
