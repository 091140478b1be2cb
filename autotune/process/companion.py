"""Processes of ours that run beside us: a module of ours, a command of the CLI.

A module stands back for others and ends with us: it calls `die_with_parent`.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from autotune.process.descendants import tree
from autotune.process.files import private_opener
from autotune.process.launch import GUARD
from autotune.process.niceness import stand_back
from autotune.process.proc import resident_bytes

NICENESS = 5
SAFE = {"PYTHONSAFEPATH": "1"}
"""Companions, and what they start, import nothing from the folder that one stands in."""


class Companion:
    """A module that runs beside us.

    Args:
        module: run as a program.
        log: takes all that it prints.
    """

    def __init__(self, module: str, arguments: Sequence[str], *, log: Path) -> None:
        with open(log, "ab", opener=private_opener) as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env={**os.environ, **SAFE},
                start_new_session=True,
            )
        stand_back(self._process.pid, NICENESS)

    @property
    def pid(self) -> int:
        """Its process, which leads a session."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.poll()

    def close(self) -> None:
        """End it, and all that it has started, if it still runs."""
        if self._process.poll() is None:
            for pid in tree(self._process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.wait()


class Command:
    """A command of the command line, in a session of its own.

    Args:
        arguments: of `autotune`.
        folder: where it runs.
        output, errors: files for its output and its errors.
        environment: variables in place of ours; None: without it.
        guarded: whether it ends with us, and all it has started with it; else it outlives us.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        folder: Path,
        output: Path,
        errors: Path,
        environment: Mapping[str, str | None],
        guarded: bool = True,
    ) -> None:
        variables = {**os.environ, "PYTHONUNBUFFERED": "1", **SAFE, **environment}
        command = [sys.executable, "-m", "autotune", *arguments]
        guard = [sys.executable, "-m", GUARD] if guarded else []
        with (
            open(output, "ab", opener=private_opener) as out,
            open(errors, "ab", opener=private_opener) as err,
        ):
            self._process = subprocess.Popen(
                [*guard, *command],
                stdin=subprocess.PIPE if guarded else subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=folder,
                env={name: value for name, value in variables.items() if value is not None},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Its first process."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Its exit code, 128 + N where signal N ended it; None while it runs."""
        code = self._process.poll()
        if code is not None and self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
            with contextlib.suppress(ProcessLookupError):  # a guard that was killed leaves some
                os.killpg(self._process.pid, signal.SIGKILL)
        return 128 - code if code is not None and code < 0 else code

    @property
    def resident_bytes(self) -> int:
        """Resident memory now of all its processes together; what they share counts for each."""
        return sum(resident_bytes(pid) or 0 for pid in tree(self._process.pid))

    def stand_back(self, niceness: int) -> None:
        """Let it stand back for others."""
        stand_back(self._process.pid, niceness)

    def interrupt(self) -> None:
        """Ask it to end, as Ctrl-C does."""
        if self.exit_code is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGTERM)

    def end(self) -> None:
        """End it and all that it has started, now."""
        assert self._process.stdin is not None, "only what is guarded is ended"
        self._process.stdin.close()
        self._process.wait()
