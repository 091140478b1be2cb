"""Variants, traced in children of one process."""

import contextlib
import dataclasses
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from autotune.estimate.protocol import POINT, EstimateReply
from autotune.facts.host import cores
from autotune.plain_data import NONSENSE
from autotune.plan.cache import NO_ANSWER
from autotune.plan.grid import Trace
from autotune.plan.progress import Progress
from autotune.plan.variants import VariantTask
from autotune.process.child_server import PRELOAD, ChildServer
from autotune.process.host_memory import meter_of_a_look
from autotune.process.limits import Limits
from autotune.process.messages import ChildFolder, read_json, write_json

WORKER = "autotune.estimate.worker:estimate"
MORE_OF_TRACES = "autotune.estimate.variants.preload"
LIMITS = Limits(wall_s=1800.0, stall_s=1800.0)
MOST_AT_ONCE = 8
"""Each trace takes the memory of a model's shapes, and some hundred MiB."""
PROCESS_STEP = 32 * 2**20
"""Step in bytes to which the size of a fresh process is rounded up: it differs by some pages from
one to the next, and two plans of the same job must not differ."""


@contextlib.contextmanager
def trace_server(folder: Path, *, elsewhere: bool) -> Iterator[ChildServer]:
    """Yield the server process that children are forked from; it starts with the first child.

    Args:
        folder: where its log goes.
        elsewhere: whether the device is in another machine: nothing but traces is made here.
    """
    preload = (*PRELOAD, MORE_OF_TRACES) if elsewhere else PRELOAD
    with contextlib.ExitStack() as stack:
        server = ChildServer(folder / "server.log", preload)
        stack.push(server)
        yield server


class _Count:
    """A count of the candidates that are estimated so far, while several threads answer tasks."""

    def __init__(self, tasks: Sequence[VariantTask], progress: Progress) -> None:
        self._progress, self._lock = progress, threading.Lock()
        self._done, self._of = 0, sum(len(task.members) for task in tasks)
        progress.estimated(0, self._of)

    def add(self, candidates: int) -> None:
        """Add candidates that have now been estimated."""
        with self._lock:
            self._done += candidates
            self._progress.estimated(self._done, self._of)


class _TaskCount:
    """A count of the points of one task that are estimated so far; several candidates may share
    one."""

    def __init__(self, task: VariantTask, count: _Count) -> None:
        self._task, self._count, self._counted = task, count, 0

    def watch(self, event: dict[str, Any]) -> None:
        """Count a point that the child reports."""
        if event.get("event") == POINT:
            candidates = sum(member.place == event["index"] for member in self._task.members)
            self._counted += candidates
            self._count.add(candidates)

    def ended(self) -> None:
        """Count the points that the child did not report, as it has ended."""
        left = len(self._task.members) - self._counted
        if left:
            self._count.add(left)


def in_children(server: ChildServer, folder: Path, progress: Progress) -> Trace:
    """Return a function that traces tasks in children, with their files in `folder`."""
    return lambda tasks, name, hear: traced_in_children(
        tasks, server, folder / name, progress, hear
    )


def traced_in_children(
    tasks: Sequence[VariantTask],
    server: ChildServer,
    folder: Path,
    progress: Progress,
    hear: Callable[[int, EstimateReply], None] | None = None,
) -> list[EstimateReply]:
    """Answer the tasks, in as many children at a time as there are cores.

    Args:
        hear: called with each reply as it comes, and the index of its task.
    """
    numbers: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(len(tasks)):
        numbers.put(number)
    replies: dict[int, EstimateReply] = {}
    count = _Count(tasks, progress)

    def answer() -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                number = numbers.get_nowait()
                task = tasks[number]
                path = folder / f"{number:04d}"
                reply = _in_child(task, server, path, _TaskCount(task, count), stopped)
                if stopped.is_set():
                    return
                replies[number] = reply
                if hear is not None:
                    hear(number, replies[number])

    pool, stopped = ThreadPoolExecutor(), threading.Event()
    try:
        at_work = [pool.submit(answer) for _ in range(min(cores(), MOST_AT_ONCE, len(tasks)))]
        for future in wait(at_work, return_when=FIRST_EXCEPTION).done:
            future.result()
    except BaseException:  # Ctrl-C too: the children end with their server, the threads with them
        stopped.set()
        while not numbers.empty():
            numbers.get_nowait()
        server.close()
        raise
    finally:
        pool.shutdown()
    return [replies[number] for number in range(len(tasks))]


def _in_child(
    task: VariantTask, server: ChildServer, path: Path, count: _TaskCount, stopped: threading.Event
) -> EstimateReply:
    """Return the reply to a task; try once more where its child was ended from outside, but not by
    the user."""
    folder = ChildFolder(path=path)
    path.mkdir(parents=True, exist_ok=True)
    write_json(folder.request, task.request.plain())
    meter = meter_of_a_look()
    ending = server.run(folder, WORKER, LIMITS, count.watch, meter, cancelled=stopped)
    if ending.by_another and not folder.reply.exists() and not stopped.is_set():
        ending = server.run(folder, WORKER, LIMITS, host=meter, cancelled=stopped)
    count.ended()
    try:
        reply = EstimateReply.from_plain(read_json(folder.reply))
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
    """Return the reply of a variant that cannot be traced: its candidates are estimated by
    formula."""
    return EstimateReply(process_bytes=0, problem=problem)
