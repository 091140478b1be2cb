"""A parent that is killed: what it started ends, also what was only being started."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from staging import ROOT, still_running

from autotune.process.child_server import ChildServer

IMPORTING = """
import os, time
from pathlib import Path
Path(os.environ["NOTED"]).write_text(str(os.getpid()))
time.sleep(60)
"""
PARENT = """
import sys
from pathlib import Path
from autotune.process.child_server import ChildServer
ChildServer(Path(sys.argv[1]), preload=("imports_for_long",)).__enter__()
"""


def test_a_fork_server_that_still_imports_ends_with_its_parent(tmp_path: Path) -> None:
    (tmp_path / "imports_for_long.py").write_text(IMPORTING, encoding="utf-8")
    noted = tmp_path / "pid"
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)]),
        "NOTED": str(noted),
    }
    command = [sys.executable, "-c", PARENT, str(tmp_path / "log")]
    parent = subprocess.Popen(command, env=environment)
    deadline = time.monotonic() + 30
    while not noted.exists() or not noted.read_text(encoding="ascii"):
        assert parent.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    server = int(noted.read_text(encoding="ascii"))
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    left = still_running([server], within_s=3.0)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []


def test_a_server_does_not_take_apart_what_it_has_imported(tmp_path: Path) -> None:
    module = tmp_path / "slow_to_end.py"
    module.write_text("import atexit, time\natexit.register(time.sleep, 30)\n", encoding="utf-8")
    environment = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    with ChildServer(tmp_path / "log", preload=("slow_to_end",), environment=environment):
        began = time.monotonic()
    assert time.monotonic() - began < 5
