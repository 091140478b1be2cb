"""Standing back reaches a whole session; threads share one arena of the C library."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autotune.process.descendants import tree
from autotune.process.niceness import stand_back

GROUP = Path("/proc/self/autogroup")
grouped = pytest.mark.skipif(not GROUP.exists(), reason="this kernel does not group by session")


def group_of(pid: int) -> str:
    return Path(f"/proc/{pid}/autogroup").read_text(encoding="ascii")


def test_a_process_stands_back_with_all_that_it_has_started() -> None:
    with subprocess.Popen(["sh", "-c", "sleep 60 & wait"], start_new_session=True) as process:
        while len(started := tree(process.pid)) < 2:
            time.sleep(0.01)
        stand_back(process.pid, 7)
        assert [os.getpriority(os.PRIO_PROCESS, pid) for pid in started] == [7, 7]
        os.killpg(process.pid, signal.SIGKILL)


@grouped
def test_so_does_its_session() -> None:
    ours = group_of(os.getpid())
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        stand_back(process.pid, 7)
        assert group_of(process.pid).endswith("nice 7\n")
        process.kill()
    assert group_of(os.getpid()) == ours


PROGRAM = """
import ctypes, sys, threading
from autotune.process.niceness import share_one_arena

if sys.argv[2] == "shared":
    share_one_arena()
held, ready = [], threading.Barrier(9)

def hold():
    held.append([bytes(600) for _ in range(100)])  # Python's own allocator leaves these to malloc
    ready.wait()

for _ in range(8):
    threading.Thread(target=hold, daemon=True).start()
ready.wait()
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
libc.malloc_info.argtypes, libc.fclose.argtypes = [ctypes.c_int, ctypes.c_void_p], [ctypes.c_void_p]
file = libc.fopen(sys.argv[1].encode(), b"w")
libc.malloc_info(0, file)
libc.fclose(file)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's own")
def test_threads_share_the_arena_of_the_program(tmp_path) -> None:
    arenas = {}
    for how in ("shared", "each"):
        path = tmp_path / how
        subprocess.run([sys.executable, "-c", PROGRAM, str(path), how], check=True)
        arenas[how] = path.read_text("utf-8").count("<heap nr=")
    assert arenas["shared"] == 1 < arenas["each"]
