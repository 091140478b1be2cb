"""A container's shared memory, which is too small for data workers."""

import json
import os
import subprocess
import sys

import pytest

from tests.cpu.conftest import Command
from tests.cpu.test_run import FEW, write_job

FULL = "mount -t tmpfs -o size=4k none /dev/shm && echo full > /dev/shm/full && exec "


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has mounts of its own")
def test_data_workers_without_shared_memory_are_named(autotune: Command) -> None:
    write_job(autotune.folder, fixed={**FEW, "dataloader_num_workers": 2})
    done = subprocess.run(
        ["unshare", "-m", "bash", "-c", f'{FULL} "$@"', "bash"]
        + [sys.executable, "-m", "autotune", "probe", "job.yaml", "--json"],
        cwd=autotune.folder,
        capture_output=True,
        text=True,
    )
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    assert done.returncode == 1, done.stderr
    measurement = json.loads(done.stdout)["measurement"]
    assert measurement["outcome"] == "crash"
    said = "data workers need shared memory, and /dev/shm has 0 B left (of a container: --shm-size)"
    assert measurement["reason"].endswith(said)
