"""Paths through the program, traced in children: one at a time for each process that forks them."""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from autotune.estimate.protocol import EstimateReply
from autotune.plan.cache import reply_from_plain
from autotune.plan.progress import Count, TaskCount, Told, nobody
from autotune.plan.variants import PathTask
from autotune.process.limits import Limits
from autotune.process.messages import ProbeFolder, read_json, write_json
from autotune.process.server import ProbeServer

WORKER = "autotune.estimate.worker:estimate"
LIMITS = Limits(wall_s=1800.0, stall_s=1800.0)
MAX_SERVERS = 8


@contextlib.contextmanager
def servers(folder: Path, count: int) -> Iterator[list[ProbeServer]]:
    """As many processes that children are forked from as there are cores."""
    with contextlib.ExitStack() as stack, ThreadPoolExecutor() as pool:
        folder.mkdir(parents=True, exist_ok=True)
        made = [ProbeServer(folder / f"server-{n}.log") for n in range(min(count, MAX_SERVERS))]
        yield list(pool.map(stack.enter_context, made))


def traced_in_children(
    tasks: Sequence[PathTask],
    started: Sequence[ProbeServer],
    folder: Path,
    told: Told = nobody,
) -> list[EstimateReply]:
    """Answer the tasks, one child at a time for each server."""
    free = list(started)
    lock = threading.Lock()
    count = Count(tasks, told)

    def answer(task: PathTask, number: int) -> EstimateReply:
        with lock:
            server = free.pop()
        try:
            return _in_child(task, server, folder / f"{number:04d}", count.watcher(task))
        finally:
            with lock:
                free.append(server)

    pool = ThreadPoolExecutor(max_workers=len(started))
    try:
        waiting = [pool.submit(answer, task, number) for number, task in enumerate(tasks)]
        return [future.result() for future in waiting]
    except BaseException:  # Ctrl-C too: the children end with their servers, the threads with them
        pool.shutdown(wait=False, cancel_futures=True)
        with contextlib.ExitStack() as ending:  # all of them, though another Ctrl-C comes between
            for server in started:
                ending.callback(server.close)
        raise
    finally:
        pool.shutdown()


def _in_child(task: PathTask, server: ProbeServer, path: Path, count: TaskCount) -> EstimateReply:
    folder = ProbeFolder(path=path)
    path.mkdir(parents=True, exist_ok=True)
    write_json(folder.request, task.request.plain())
    ending = server.run(folder, WORKER, LIMITS, count.watch)
    count.ended()
    reply = read_json(folder.reply)
    if not isinstance(reply, dict):
        return untraced(
            f"the trace ended without an answer: exit code {ending.exit_code}, signal "
            f"{ending.signal}, {ending.why}{_last_words(folder)}"
        )
    return reply_from_plain(reply)


def _last_words(folder: ProbeFolder) -> str:
    with contextlib.suppress(OSError):
        text = folder.stderr.read_text(encoding="utf-8", errors="replace").strip()
        if text:
            return f"; it last said: {text.splitlines()[-1][:200]}"
    return ""


def untraced(problem: str) -> EstimateReply:
    """The reply of a path that cannot be traced: what is on it is estimated by formula."""
    return EstimateReply(
        points=[],
        shapes=[],
        optimizer_work={},
        process_bytes=0,
        policy={},
        seconds=0.0,
        problem=problem,
    )
