"""The process that every child is forked from.

It imports the stack once (seconds) and then forks a child per request (milliseconds). It never
touches a device, starts no thread, and never runs what a child runs. One JSON line per request
comes in on stdin, one per event goes out on stdout. When stdin closes, as it does when the parent
is killed, it kills its children and ends at once; while it imports, and cannot look, the kernel
ends it (`_end_with_input`).

    in:  {"start": folder, "worker": "module:function"}      {"kill": pid}
         {"environment": {name: value, or null where it is to go}, "folder"}: of the next children
    out: {"event": "ready", "fresh"}  {"event": "started", "pid"}  {"event": "exited", "pid",
         "exit_code", "signal", "max_rss_bytes", "strays"}

Where an import has started CUDA all the same (`importing.py`), it says {"event": "cuda", "starter"}
in place of `ready` and ends, which gives back what it holds of the GPU. Started anew with
AUTOTUNE_PROCESSES=fresh (or "fresh: why") it imports nothing, `fresh` says why, and a child becomes
a new interpreter as soon as it is forked (`run_worker.py`).

A child leads its own session and process group. When it ends, its group is killed before it is
reaped, so that its group id is not in use again; whatever left the group is re-parented to this
process (it is a subreaper) and killed too (`strays`).

Why not `multiprocessing`'s forkserver: see docs/decisions/0002-own-forkserver.md.
"""

import contextlib
import fcntl
import json
import os
import select
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autotune.process.descendants import adopt_orphans, die_with_parent, end_children
from autotune.process.files import opener
from autotune.process.importing import import_without_cuda
from autotune.process.proc import name_template
from autotune.process.run_worker import run_worker

CHOICE = "AUTOTUNE_PROCESSES"
"""The variable of the environment that may ask for fresh processes."""


class ForkServer:
    """Forks workers on request and tells how each one ended."""

    def __init__(self) -> None:
        self._children: set[int] = set()
        self._buffer = b""
        self._preload: list[str] = []
        self._fresh: str | None = None
        # stdout is for events alone: whatever a library prints goes to stderr.
        self._events = os.dup(1)
        os.dup2(2, 1)

    def serve(self, preload: list[str]) -> None:
        """Import `preload`, then answer requests until stdin closes."""
        adopt_orphans()
        self._preload = preload
        choice, _, reason = os.environ.get(CHOICE, "").partition(": ")
        if choice == "fresh":
            self._fresh = reason or f"{CHOICE}=fresh asks for it"
            print(f"every child is a fresh process: {self._fresh}", file=sys.stderr, flush=True)
        else:
            with _end_with_input():
                starter = import_without_cuda(preload)
            if starter:
                self._tell({"event": "cuda", "starter": starter})
                return
        wake_in, wake_out = os.pipe()
        os.set_blocking(wake_out, False)
        signal.set_wakeup_fd(wake_out, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._tell({"event": "ready", "fresh": self._fresh})
        while True:
            readable, _, _ = select.select([0, wake_in], [], [])
            if wake_in in readable:
                os.read(wake_in, 4096)
                self._reap()
            if 0 in readable and not self._read_requests((wake_in, wake_out)):
                break
        for pid in self._children:
            _kill_group(pid)
        self._children.clear()
        end_children()

    def _tell(self, event: dict[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self._events, json.dumps(event).encode() + b"\n")

    def _read_requests(self, private: tuple[int, ...]) -> bool:
        chunk = os.read(0, 65536)
        if not chunk:
            return False
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        for line in lines:
            request = json.loads(line)
            if "kill" in request:
                if request["kill"] in self._children:
                    _kill_group(request["kill"])
            elif "environment" in request:
                _move(request["environment"], request["folder"])
            else:
                self._start(request, private)
        return True

    def _start(self, request: dict[str, Any], private: tuple[int, ...]) -> None:
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            exit_code = 70
            try:
                _become_worker(server, Path(request["start"]), (*private, self._events))
                if self._fresh:
                    _become_fresh(request["worker"], request["start"], self._preload)
                name_template(server)
                exit_code = run_worker(request["worker"], Path(request["start"]))
            finally:
                os._exit(exit_code)
        self._children.add(pid)
        self._tell({"event": "started", "pid": pid})

    def _reap(self) -> None:
        for pid in sorted(self._children):
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                continue
            _kill_group(pid)
            _, status, usage = os.wait4(pid, 0)
            self._children.discard(pid)
            self._tell(
                {
                    "event": "exited",
                    "pid": pid,
                    "exit_code": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
                    "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
                    "max_rss_bytes": usage.ru_maxrss * 1024,
                    "strays": end_children(self._children),
                }
            )
        if not self._children:
            end_children()


@contextlib.contextmanager
def _end_with_input() -> Iterator[None]:
    """Have the kernel end this process when stdin closes, within this block: by SIGIO, which kills
    a process that does not handle it. PR_SET_PDEATHSIG would act when the thread ends that started
    us."""
    flags = fcntl.fcntl(0, fcntl.F_GETFL)
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(0, fcntl.F_SETFL, flags | os.O_ASYNC)
    try:
        if _has_hung_up(0):  # before this was set up
            os._exit(0)
        yield
    finally:
        fcntl.fcntl(0, fcntl.F_SETFL, flags)


def _has_hung_up(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLHUP)
    return any(event & select.POLLHUP for _, event in poll.poll(0))


def _move(environment: dict[str, str | None], folder: str) -> None:
    """Take over the surroundings of another caller (tests keep a server between commands)."""
    os.chdir(folder)
    for name, value in environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _kill_group(pid: int) -> None:
    """Kill a child's group, and the child itself in case it had no group of its own yet."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def _become_worker(server: int, folder: Path, private: tuple[int, ...]) -> None:
    os.setsid()
    die_with_parent()
    if os.getppid() != server:
        os._exit(71)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    for descriptor in private:
        os.close(descriptor)
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    for source, target in (
        (os.open(os.devnull, os.O_RDONLY), 0),
        (opener(str(folder / "stdout.log"), append), 1),
        (opener(str(folder / "stderr.log"), append), 2),
    ):
        os.dup2(source, target)
        os.close(source)


def _become_fresh(worker: str, folder: str, preload: list[str]) -> None:
    """Go on as a new interpreter: same process, group and files. Does not return."""
    module = "autotune.process.run_worker"
    os.execv(sys.executable, [sys.executable, "-m", module, worker, folder, *preload])


if __name__ == "__main__":
    ForkServer().serve(sys.argv[1:])
    os._exit(0)  # to take the imported stack apart would take a second
