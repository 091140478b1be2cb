"""A real control group with a limit of memory, where this machine lets one be made."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.facts.host import PROCESS, _groups

MIB = 2**20
LIMIT = 192 * MIB
LAUNCH = """
import json, sys
from dataclasses import asdict
from pathlib import Path
from autotune.facts.host import host
from autotune.process.launch import launch
hog = "hog = bytearray(2**30); print('never')"
report = launch([sys.executable, "-c", hog], log=Path(sys.argv[1]), environment={}, timeout_s=30,
                gpus=())
print(json.dumps({**asdict(host()), "kills": report.memory_kills, "exit_code": report.exit_code}))
"""


@pytest.fixture
def group() -> Iterator[Path]:
    """A group inside one with a limit: the limit of the outer one counts."""
    made: list[Path] = []
    try:
        for own in _groups("memory", PROCESS):
            outer = own / f"autotune-test-{os.getpid()}"
            with contextlib.suppress(OSError):
                outer.mkdir()
                made = [outer]
                files = ("memory.max", "memory.limit_in_bytes")
                limits = [outer / name for name in files if (outer / name).exists()]
                limits[0].write_text(str(LIMIT), encoding="ascii")
                (outer / "inner").mkdir()
                made = [outer / "inner", outer]
                break
        else:
            pytest.skip("no control group can be made here")
        yield made[0]
    except IndexError:
        pytest.skip("memory is not limited by control groups here")
    finally:
        for folder in made:
            folder.rmdir()


def test_its_limit_is_the_hosts_and_a_launch_that_the_kernel_killed_is_known(
    group: Path, tmp_path: Path
) -> None:
    script = f'echo $$ > {group}/cgroup.procs && exec {sys.executable} -c "$1" {tmp_path}/log'
    told = subprocess.run(
        ["bash", "-c", script, "bash", LAUNCH], capture_output=True, text=True, timeout=60
    )
    assert told.returncode == 0, told.stderr
    found = json.loads(told.stdout)
    assert (found["total_bytes"], found["exit_code"], found["kills"]) == (LIMIT, -9, 1)
    assert 0 < found["free_bytes"] < LIMIT
