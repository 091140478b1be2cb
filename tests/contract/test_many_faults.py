"""Three hundred children with faults, one after another, leave nothing in who started them."""

import os
import random
import time
from pathlib import Path

import pytest
from staging import STUBS_PATH, Stage, still_running

from autotune.process.child_server import ChildServer

FAULTS = ("silent", "raises", "killed", "aborts", "segfaults", "draft_only", "escapes_and_sleeps")
FAULTS += ("leaves_one_in_its_group", "leaves_one_that_escaped", "deaf", "garbled_reply")
MOST_BYTES = 8 * 2**20


def held(pid: int) -> tuple[int, int, int]:
    """Open files, threads and resident bytes of a process."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    fields = dict(line.split(":", 1) for line in status.splitlines())
    files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return files, int(fields["Threads"]), int(fields["VmRSS"].split()[0]) * 1024


@pytest.mark.nightly("process")
def test_three_hundred_faulty_children_leave_parent_and_server_flat(tmp_path: Path) -> None:
    rng, pids, seen = random.Random(5), [], {}
    with ChildServer(
        tmp_path / "log", preload=(), environment={"PYTHONPATH": STUBS_PATH}
    ) as server:
        for number in range(300):
            stage = Stage(server, tmp_path / str(number))
            fault = rng.choice(FAULTS)
            ending = stage.run(fault, wall_s=0.3 if fault in ("deaf", "escapes_and_sleeps") else 30)
            assert ending.why in ("exited", "wall"), (fault, ending)
            if (stage.folder.path / "pids").exists():
                pids += stage.pids()
            if number in (99, 299):
                stage.run("says_its_surroundings", names=[])
                time.sleep(2.0)  # the thread that watched the child ends after it
                parent = (stage.folder.path / "surroundings").read_text("utf-8").splitlines()[0]
                seen[number] = [held(os.getpid()), held(int(parent))]
    for before, after in zip(seen[99], seen[299], strict=True):
        assert after[:2] == before[:2]
        assert after[2] - before[2] < MOST_BYTES, (before, after)
    assert len(pids) > 100
    assert still_running(pids) == []
