"""The C library's arenas: one for all threads that start later."""

import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, sys, threading
from autotune.process.arenas import share_one_arena

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
