"""Runs a command and ends it, and all it started, when the process that asked for it is gone.

    python -m autotune.process.guard COMMAND ...

The parent holds the other end of this process's standard input: when it closes, which is what a
`kill -9` of the parent looks like from here, everything that was started is killed, also what went
into sessions of its own, as the ranks of torch's elastic launcher do: this process adopts them.
What the command leaves behind when it ends is killed, too. The exit code is the command's own.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys

from autotune.process.descendants import adopt_orphans, end_children


def main(command: list[str]) -> int:
    """Run `command` until it ends, or until standard input does."""
    adopt_orphans()
    wake_in, wake_out = os.pipe()
    os.set_blocking(wake_out, False)
    signal.set_wakeup_fd(wake_out, warn_on_full_buffer=False)
    # Signals meant for the group are the command's to answer; a handler is not inherited by it.
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    while process.poll() is None:
        readable, _, _ = select.select([0, wake_in], [], [])
        if wake_in in readable:
            os.read(wake_in, 4096)
        if 0 in readable and not os.read(0, 4096):
            end_children()
            os.killpg(os.getpgrp(), signal.SIGKILL)
    end_children()
    if process.returncode < 0:
        with contextlib.suppress(OSError):  # of SIGKILL there is nothing to restore
            signal.signal(-process.returncode, signal.SIG_DFL)
        os.kill(os.getpid(), -process.returncode)
    return process.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
