"""One child that answers many checks: each of a command's own imports the stack for seconds."""

import atexit
import functools
import subprocess
import sys
import tempfile
from pathlib import Path

from autotune.bundle.check.asking import Checked, LaunchReply, LaunchRequest, check_launch
from autotune.bundle.check.files import LaunchFiles
from autotune.errors import MachineError, Problem
from autotune.plain_data import from_plain, to_plain
from autotune.process.child_server import child_environment
from autotune.process.messages import ChildFolder, read_json, write_json

_CHILD = """
import contextlib, os, sys
from pathlib import Path
from autotune.bundle.check.launch_worker import ask
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
for line in sys.stdin:
    with contextlib.suppress(Exception):
        ask(Path(line.strip()))
    print("done", file=answers, flush=True)
"""


@functools.cache
def _child() -> "subprocess.Popen[str]":
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=child_environment(),
    )
    atexit.register(child.kill)
    return child


def ask(request: LaunchRequest) -> LaunchReply:
    """What the installed stack says of a launch."""
    child = _child()
    assert child.stdin is not None and child.stdout is not None
    with tempfile.TemporaryDirectory() as folder:
        write_json(ChildFolder(path=Path(folder)).request, to_plain(request))
        print(folder, file=child.stdin, flush=True)
        assert child.stdout.readline() == "done\n"
        reply = read_json(ChildFolder(path=Path(folder)).reply)
        if reply is None:
            raise MachineError(Problem(where="", what="the child ended without an answer"))
        return from_plain(LaunchReply, reply)


def checked(files: LaunchFiles) -> Checked:
    """The check of a launch, as the command makes it."""
    return check_launch(files, ask)
