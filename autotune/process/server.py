"""The parent's side: start a child, watch it, end it, and say how it ended.

Every process this project starts is started here. A child is watched in five ways: it exits; it
outlives its time; it stops making progress while using no processor (a hang); it takes more of the
host's memory than it may; or the caller has seen enough of its progress (a probe that cannot win).
Whatever happens becomes an `Ending`.
"""

import json
import os
import selectors
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Self

from autotune.errors import machine_error
from autotune.process.forkserver import CHOICE
from autotune.process.host_memory import HostMeter
from autotune.process.kept import Kept, end_server, keep, take
from autotune.process.limits import Ending, Limits, Watcher, lost_ending
from autotune.process.logs import ending_of
from autotune.process.messages import ChildFolder
from autotune.process.opener import private_opener
from autotune.process.watch import ChildWatch

PRELOAD = (
    "torch",
    "transformers",
    "trl",
    "peft",
    "accelerate",
    "datasets",
    "autotune.process.preload",
)
PRELOAD_OF_TRACES = ("torch", "autotune.process.later_imports", *PRELOAD[1:])
"""Where nothing but traces is made: what only a training needs is left out."""
_CLOSE_S = 10.0


class ChildServer:
    """A running forkserver, and the only way to start a child. Use as a context manager, which
    waits until the stack is imported; or let the first child begin it, and `leave` in the end.

    Several threads may each run a child at a time; an orphan of one ends with any of them.
    """

    def __init__(
        self,
        log: Path,
        preload: tuple[str, ...] = PRELOAD,
        environment: dict[str, str] | None = None,
        ready_s: float = 300.0,
    ):
        """A server that imports `preload`, and gives up after `ready_s` seconds of that."""
        self._log = log
        self._ready_s = ready_s
        self._preload = preload
        self._environment = dict(environment or {})
        self._surroundings: dict[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self._talking = threading.Lock()
        self._endings: dict[int, dict[str, Any]] = {}
        self.fresh: str | None = None
        """Why every child is a fresh process, slower by the imports; None: children are forked."""
        self._importing_since: float | None = None
        self.import_s = 0.0
        """Seconds that it took to start: to import the stack."""

    def __enter__(self) -> Self:
        self.begin()
        self._await_imports()
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Keep it for the next where there may be one (`kept.py`), or end it."""
        if self._importing_since is not None:
            self.close()
        process, self._process = self._process, None
        about = (self._preload, self._surroundings, self.fresh, self.import_s)
        if process and not keep(Kept(process, *about)):
            end_server(process, _CLOSE_S)

    def begin(self) -> None:
        """Start to import; the first child waits until that is done."""
        self._buffer = b""
        self._endings.clear()
        self._surroundings = {**os.environ, **child_environment(), **self._environment}
        if kept := take(self._preload, self._surroundings):
            self._process, self.fresh, self.import_s = kept.process, kept.fresh, kept.import_s
            return
        # -P: the folder that the user stands in may hold a `datasets.py`.
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with open(self._log, "ab", opener=private_opener) as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "autotune.process.forkserver", *self._preload],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._surroundings,
                start_new_session=True,
            )
        self._importing_since = time.monotonic()

    def _await_imports(self) -> None:
        """Wait until everything is imported.

        Raises:
            MachineError: it cannot be, or not in time.
        """
        if self._importing_since is None:
            return
        deadline = self._importing_since + self._ready_s
        ready = self._next_event(deadline - time.monotonic())
        if ready is None:
            is_late = time.monotonic() >= deadline
            self.close()
            if is_late:
                raise machine_error(
                    f"the training stack was still being imported after {self._ready_s:g} s",
                    hint="this machine is busy, or its disk is slow: try again",
                )
            raise machine_error(
                f"the training stack cannot be imported{ending_of(self._log)}",
                hint="`autotune doctor` tells whether a package is missing or broken",
            )
        if ready["event"] == "cuda":
            self.close()
            self._environment |= {CHOICE: f"fresh: importing {ready['starter']} starts CUDA"}
            self.begin()
            self._await_imports()
        else:
            self.fresh, self.import_s = ready["fresh"], time.monotonic() - self._importing_since
            self._importing_since = None

    def close(self) -> None:
        """End the server; it kills its children when its input closes."""
        process, self._process = self._process, None
        if process is not None:
            # While it imports it has no children, and does not look at its input.
            end_server(process, _CLOSE_S if self._importing_since is None else 0.0)
        self._importing_since = None

    def run(
        self,
        folder: ChildFolder,
        worker: str,
        limits: Limits,
        watch: Watcher | None = None,
        host: HostMeter | None = None,
        cancelled: threading.Event | None = None,
    ) -> Ending:
        """Run `worker` on `folder` in a child of its own until it ends, one way or another.

        Args:
            host: watches what it takes of the host's memory, and may end it.
            cancelled: where it is set by the time that the server is free, no child is started.
        """
        folder.path.mkdir(parents=True, exist_ok=True)
        folder.reply.unlink(missing_ok=True)
        folder.progress.unlink(missing_ok=True)
        for log in (folder.stdout, folder.stderr):  # the child does not follow links
            if log.is_symlink():
                log.unlink()
        try:
            with self._talking:
                if cancelled is not None and cancelled.is_set():
                    return lost_ending(0.0)
                pid = self._start(folder, worker)
            if pid is None:
                return lost_ending(0.0)
            return ChildWatch(self, folder, pid, limits, watch, host).until_end()
        except BaseException:
            self.close()  # and the children with it; what they would still say is not for the next
            raise

    def _start(self, folder: ChildFolder, worker: str) -> int | None:
        """Return the process of a new child; None where the server does not answer, which ends
        it."""
        importing = self._importing_since is not None
        if self._process is None or (not importing and self._process.poll() is not None):
            self.close()
            self.begin()
        self._await_imports()
        self._send({"start": str(folder.path), "worker": worker})
        while event := self._next_event(timeout_s=30.0):
            if event["event"] == "started":
                return int(event["pid"])
            self._endings[event["pid"]] = event
        self.close()
        return None

    def await_ending(self, pid: int, timeout_s: float) -> dict[str, Any] | None:
        """Return what the server says of the end of a child; None after `timeout_s` or when the
        server is gone."""
        with self._talking:
            if pid not in self._endings and (event := self._next_event(timeout_s)):
                self._endings[event["pid"]] = event
            return self._endings.pop(pid, None)

    def kill(self, pid: int) -> None:
        """Kill a child and its whole group."""
        self._send({"kill": pid})

    def _send(self, message: dict[str, Any]) -> None:
        process = self._process
        if process is None:  # another thread has closed it, and its children have ended with it
            return
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(message).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            process.wait()

    def _next_event(self, timeout_s: float) -> dict[str, Any] | None:
        """Return the server's next event; None after `timeout_s` or when the server is gone."""
        process = self._process
        if process is None:  # another thread has closed it
            return None
        assert process.stdout is not None
        deadline = time.monotonic() + timeout_s
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(process.stdout, selectors.EVENT_READ)
                while b"\n" not in self._buffer:
                    remaining_s = deadline - time.monotonic()
                    if remaining_s <= 0 or not selector.select(remaining_s):
                        return None
                    chunk = os.read(process.stdout.fileno(), 65536)
                    if not chunk:
                        return None
                    self._buffer += chunk
        except ValueError:  # another thread closes it
            return None
        line, _, self._buffer = self._buffer.partition(b"\n")
        event: dict[str, Any] = json.loads(line)
        return event

    @property
    def is_alive(self) -> bool:
        """True if the server still runs."""
        return self._process is not None and self._process.poll() is None


def child_environment() -> dict[str, str]:
    """Return the variables that every child sees besides the user's own environment."""
    return {
        "TRL_EXPERIMENTAL_SILENCE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
        # Torch asks NVML whether there is a GPU, and does not start CUDA to find out.
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        # A checkpoint that is a pickle is read as tensors alone: nothing in it is run.
        "TORCH_FORCE_WEIGHTS_ONLY_LOAD": "1",
    }
