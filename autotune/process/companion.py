"""A module of ours in a process beside us, which takes JSON lines and says JSON lines.

It stands back for others, and only its end is waited for: what it does not take yet is kept here
until it does. The module calls `die_with_parent`, and ends where its input does.
"""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.process.descendants import tree
from autotune.process.niceness import stand_back
from autotune.process.opener import private_opener

NICENESS = 5
_POLL_S = 0.1


class Companion:
    """A module that runs beside us.

    Args:
        module: run as a program.
        log: takes all that it prints beside its lines.
    """

    def __init__(self, module: str, arguments: Sequence[str], *, log: Path) -> None:
        with open(log, "ab", opener=private_opener) as file:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                start_new_session=True,
            )
        stand_back(self._process.pid, NICENESS)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input, self._output = self._process.stdin.fileno(), self._process.stdout.fileno()
        for descriptor in (self._input, self._output):
            os.set_blocking(descriptor, False)
        self._queue = self._buffer = b""

    @property
    def pid(self) -> int:
        """Its process, which leads a session."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def send(self, message: Mapping[str, Any]) -> None:
        """Hand it a message: now, or with the next one where it is busy."""
        self._queue += json.dumps(message, allow_nan=False).encode() + b"\n"
        self._write()

    def lines(self) -> list[dict[str, Any]]:
        """Return what it has said since this was asked last."""
        self._read()
        *lines, self._buffer = self._buffer.split(b"\n")
        return [json.loads(line) for line in lines]

    def finish(self, quiet_s: float) -> bool:
        """Let it take what is left and end; False: it runs on, and has said nothing for so long."""
        deadline = time.monotonic() + quiet_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._output, selectors.EVENT_READ)
            while self._process.poll() is None:
                self._write()
                if not self._queue:
                    self._close_input()
                selector.select(_POLL_S)
                if self._read():
                    deadline = time.monotonic() + quiet_s
                elif time.monotonic() > deadline:
                    return False
        return True

    def close(self) -> None:
        """End it, and all that it has started, if it still runs."""
        self._close_input()
        if self._process.poll() is None:
            for pid in tree(self._process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _write(self) -> None:
        try:
            while self._queue:
                self._queue = self._queue[os.write(self._input, self._queue) :]
        except BlockingIOError:
            return
        except BrokenPipeError:  # it has ended: `exit_code` says how
            self._queue = b""

    def _read(self) -> bool:
        """Take what it has said; whether that was anything."""
        before = len(self._buffer)
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(self._output, 65536):
                self._buffer += chunk
        return len(self._buffer) > before

    def _close_input(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
