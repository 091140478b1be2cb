"""Variants, traced in children: one at a time for each process that forks them."""

import contextlib
import dataclasses
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

from autotune.estimate.protocol import EstimateReply
from autotune.facts.control_group import cores
from autotune.plan.cache import NO_ANSWER, reply_from_plain
from autotune.plan.progress import Count, Progress, TaskCount
from autotune.plan.variants import VariantTask
from autotune.process.limits import Limits
from autotune.process.messages import ChildFolder, read_json, write_json
from autotune.process.server import PRELOAD, PRELOAD_OF_TRACES, ChildServer
from autotune.value_types import NONSENSE

WORKER = "autotune.estimate.worker:estimate"
LIMITS = Limits(wall_s=1800.0, stall_s=1800.0)
MAX_SERVERS = 8
PROCESS_STEP = 32 * 2**20
"""Bytes that the size of a fresh process is rounded up to: it differs by some pages from one to the
next, and a plan of the same job is to say the same."""
TASKS_A_SERVER = 4
"""Another process to fork from takes as long to start as this many traces."""
AT_ONCE = 2
"""So many import the stack beside each other where a space is planned: few spaces are one trace."""


class Servers:
    """Processes that children are forked from, started as they are needed. A context manager.

    Args:
        folder: where their logs go.
        running: those that run already; they are left running.
        elsewhere: whether the device is in another machine: nothing but traces is made here.
    """

    def __init__(self, folder: Path, *running: ChildServer, elsewhere: bool = False) -> None:
        self._folder, self._stack = folder, contextlib.ExitStack()
        self._preload = PRELOAD_OF_TRACES if elsewhere else PRELOAD
        self._running = dict(enumerate(running))
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def first(self) -> ChildServer:
        """The one that does what needs a single one."""
        return self.at(0)

    def at(self, number: int) -> ChildServer:
        """The server of this number. Where it does not run yet it begins to import; its first child
        waits for that."""
        with self._lock:
            if number not in self._running:
                self._folder.mkdir(parents=True, exist_ok=True)
                server = ChildServer(self._folder / f"server-{number}.log", self._preload)
                self._stack.push(server)
                server.begin()
                self._running[number] = server
            return self._running[number]

    def begin(self, count: int) -> None:
        """Let so many import beside each other, as there are cores."""
        for number in range(min(count, cores())):
            self.at(number)

    def wanted(self, tasks: int) -> int:
        """How many servers that many tasks are worth: at most one for each core."""
        count = min(cores(), MAX_SERVERS, tasks // TASKS_A_SERVER)
        return min(max(count, len(self._running), 1), max(tasks, 1))

    def end(self) -> None:
        """End them and their children now, though another Ctrl-C comes between."""
        with contextlib.ExitStack() as ending:
            for server in self._running.values():
                ending.callback(server.close)


def traced_in_children(
    tasks: Sequence[VariantTask],
    servers: Servers,
    folder: Path,
    progress: Progress,
    heard: Callable[[int, EstimateReply], None] | None = None,
) -> list[EstimateReply]:
    """Answer the tasks, one child at a time for each server.

    Args:
        heard: called with each reply as it comes, and the index of its task.
    """
    numbers: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(len(tasks)):
        numbers.put(number)
    replies: dict[int, EstimateReply] = {}
    count = Count(tasks, progress)

    def answer(place: int) -> None:
        server = servers.at(place)
        with contextlib.suppress(queue.Empty):
            while True:
                number = numbers.get_nowait()
                task = tasks[number]
                path = folder / f"{number:04d}"
                reply = _in_child(task, server, path, count.watcher(task), stopped)
                if stopped.is_set():
                    return
                replies[number] = reply
                if heard is not None:
                    heard(number, replies[number])

    pool, stopped = ThreadPoolExecutor(), threading.Event()
    try:
        # One that runs begins at once, while the others are still being started.
        at_work = [pool.submit(answer, place) for place in range(servers.wanted(len(tasks)))]
        for future in at_work:
            future.result()
    except BaseException:  # Ctrl-C too: the children end with their servers, the threads with them
        stopped.set()
        while not numbers.empty():
            numbers.get_nowait()
        servers.end()
        raise
    finally:
        pool.shutdown()
    return [replies[number] for number in range(len(tasks))]


def _in_child(
    task: VariantTask, server: ChildServer, path: Path, count: TaskCount, stopped: threading.Event
) -> EstimateReply:
    """The reply to a task; once more where somebody else ended it, unless the user did."""
    folder = ChildFolder(path=path)
    path.mkdir(parents=True, exist_ok=True)
    write_json(folder.request, task.request.plain())
    ending = server.run(folder, WORKER, LIMITS, count.watch)
    if ending.by_another and not folder.reply.exists() and not stopped.is_set():
        ending = server.run(folder, WORKER, LIMITS)
    count.ended()
    try:
        reply = reply_from_plain(read_json(folder.reply) or {})
        rounded = -(-reply.process_bytes // PROCESS_STEP) * PROCESS_STEP
        return dataclasses.replace(reply, process_bytes=rounded)
    except NONSENSE:
        return untraced(
            f"{NO_ANSWER}: exit code {ending.exit_code}, signal "
            f"{ending.signal}, {ending.why}{_last_words(folder)}"
        )


def _last_words(folder: ChildFolder) -> str:
    with contextlib.suppress(OSError):
        text = folder.stderr.read_text(encoding="utf-8", errors="replace").strip()
        if text:
            return f"; it last said: {text.splitlines()[-1][:200]}"
    return ""


def untraced(problem: str) -> EstimateReply:
    """The reply of a variant that cannot be traced: what is on it is estimated by formula."""
    return EstimateReply(process_bytes=0, problem=problem)
