"""What a busy machine is busy with: a real process that nobody here has started."""

import os
import signal
import subprocess
import sys

import pytest

from autotune.process import processor_load


def test_who_takes_the_cores_is_named_and_ours_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor_load, "MOST_NAMED", 1000)  # others may take more of this machine
    monkeypatch.setattr(processor_load, "BUSY_SHARE", 0.01)
    monkeypatch.setattr(processor_load, "LOOK_S", 1.0)
    loop = f"{sys.executable} -c 'while True: pass'"
    ours = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    orphan = int(subprocess.check_output(["bash", "-c", f"{loop} > /dev/null & echo $!"]))
    try:
        named = " ".join(processor_load.busiest_others())
    finally:
        os.kill(orphan, signal.SIGKILL)
        ours.kill()
        ours.wait()
    assert f"pid {orphan} (python" in named
    assert f"pid {ours.pid} " not in named and f"pid {os.getpid()} " not in named
