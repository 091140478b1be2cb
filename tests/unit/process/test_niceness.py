"""Standing back reaches over sessions, and ends; threads share one arena of the C library."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from autotune.process.niceness import keep_to_last_core, session_standing_back, stand_back

GROUP = Path("/proc/self/autogroup")
grouped = pytest.mark.skipif(not GROUP.exists(), reason="this kernel does not group by session")


def group_of(pid: int) -> str:
    return Path(f"/proc/{pid}/autogroup").read_text(encoding="ascii")


def test_a_process_stands_back() -> None:
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        stand_back(process.pid, 7)
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == 7
        process.kill()


@grouped
def test_so_does_its_session() -> None:
    ours = group_of(os.getpid())
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as process:
        stand_back(process.pid, 7)
        assert group_of(process.pid).endswith("nice 7\n")
        process.kill()
    assert group_of(os.getpid()) == ours


def test_a_thread_keeps_to_the_last_core_with_those_that_it_starts_and_no_others() -> None:
    cores = sorted(os.sched_getaffinity(0))

    def affinities(beside: int) -> tuple[list[int], list[int]]:
        with ThreadPoolExecutor(1) as threads:
            threads.submit(keep_to_last_core, beside).result()
            started = [sys.executable, "-c", "import os; print(*sorted(os.sched_getaffinity(0)))"]
            child = threads.submit(subprocess.check_output, started, text=True).result()
            own = sorted(threads.submit(os.sched_getaffinity, 0).result())
            return own, [int(core) for core in child.split()]

    assert affinities(len(cores)) == (cores, cores)
    assert affinities(len(cores) - 1) == (cores[-1:], cores[-1:])
    assert sorted(os.sched_getaffinity(0)) == cores


@grouped
def test_a_session_has_its_priority_back_at_the_end() -> None:
    code = """
from pathlib import Path
from time import sleep
from autotune.process.niceness import session_standing_back
read = lambda: Path("/proc/self/autogroup").read_text().split()[-1]
print(read())
with session_standing_back(5):
    print(read())
    sleep(0.2)  # who is not privileged may change it once in 100 ms
print(read())
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        start_new_session=True,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.split() == ["0", "5", "0"]


def test_nothing_happens_where_there_are_no_such_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", missing)
    monkeypatch.setattr(Path, "write_text", missing)
    with session_standing_back(5):
        pass


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
