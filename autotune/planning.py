"""What every candidate of a space is expected to take, before anything runs on the device.

survey -> bind the space -> paths -> traces in children -> estimates
"""

import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.candidate_estimates import estimates_of
from autotune.counting import Count, TaskCount, Told, nobody
from autotune.estimate.ceilings import Ceilings
from autotune.estimate.estimates import Estimate
from autotune.estimate.protocol import EstimateReply
from autotune.estimate.tabled_ceilings import ceilings_of_kind
from autotune.facts import Facts
from autotune.facts.device_kinds import DeviceKind
from autotune.facts.host import host_limit
from autotune.job import Job
from autotune.path_tasks import PathTask, path_tasks
from autotune.placing import allocator_limit, device_facts, placed, planned_limit
from autotune.plan_cache import PlanCache, reply_from_plain
from autotune.probe.ending import Limits
from autotune.probe.protocol import ProbeFolder, read_json, write_json
from autotune.probe.runner import ProbeServer
from autotune.run_folder import RunFolder
from autotune.space.definition import SpaceDefinition
from autotune.space.knobs import Candidate
from autotune.space.quantization import not_installed
from autotune.space.settings import threads
from autotune.space.spaces import SearchSpace, bind
from autotune.surveying import survey

WORKER = "autotune.estimate.estimating:estimate"
CEILINGS_WORKER = "autotune.estimate.bench_ceilings:measure"
LIMITS = Limits(wall_s=1800.0, stall_s=1800.0)
MAX_SERVERS = 8
BUSY = 0.05
"""Rates that were measured while threads waited so much of the time are used once only."""
WORTH_MEASURING = 16
"""From so many candidates on, a device's rates are measured (once) to rank them."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A space with what is expected of each of its candidates.

    Attributes:
        limit_bytes: what a process may take on the device.
        host_limit_bytes: what all processes may take of the host; None: nothing is known of that.
        devices: how many train together, on `nodes` machines.
        seconds: wall time of making the plan.
        cached: whether all of it was remembered.
        not_installed: what the job needs to be run that is not here, as a sentence; None: nothing.
    """

    facts: Facts
    space: SearchSpace
    estimates: Mapping[str, Estimate]
    limit_bytes: int
    devices: int
    seconds: float
    cached: bool
    not_installed: str | None = None
    nodes: int = 1
    host_limit_bytes: int | None = None

    def ranked(self) -> list[tuple[Candidate, Estimate]]:
        """Candidates that fit first; the fastest first where speed is known, else the leanest."""

        def order(pair: tuple[Candidate, Estimate]) -> tuple[Any, ...]:
            estimate = pair[1]
            speed = -(estimate.tokens_per_s or 0.0)
            return not estimate.fits, speed, estimate.peak_memory_bytes

        return sorted(((one, self.estimates[one.key]) for one in self.space.candidates), key=order)


def plan(
    job: Job,
    definition: SpaceDefinition,
    scratch: Path,
    *,
    device: str | None = None,
    only_default: bool = False,
    told: Told = nobody,
) -> Plan:
    """Estimate every candidate of a job, on this machine's device or on one of a named kind.

    Args:
        scratch: a folder for the files of the survey and the traces.
        device: a kind of GPU (`h200`, `memory=24GiB`), `cpu`, or None: what the job says.
        only_default: the default candidate alone, pinned knobs as pinned.
        told: hears how many candidates are estimated.

    Raises:
        UserError: the job or the kind of device cannot be.
        MachineError: the training stack cannot be run here.
    """
    began = time.monotonic()
    job, kind = placed(job, device)
    cache = PlanCache.of_user()
    run = RunFolder(path=scratch)
    facts, replies, cached = _remembered(job, definition, run, kind, cache, only_default, told)
    space = bind(definition, job, facts)
    if only_default:
        space = dataclasses.replace(space, candidates=(space.default(),))
    limit = planned_limit(job, facts)
    allowed = allocator_limit(job, facts, limit)
    tasks = path_tasks(job, facts, space.candidates, rows=run.rows, limit=allowed, cache=None)
    worth = kind is not None or len(space.candidates) >= WORTH_MEASURING
    ceilings = known_ceilings(facts, kind, cache, scratch) if worth else None
    return Plan(
        facts=facts,
        space=space,
        estimates=estimates_of(tasks, replies, job, facts, limit, ceilings=ceilings),
        limit_bytes=limit,
        devices=job.devices.total,
        nodes=job.devices.nodes,
        seconds=round(time.monotonic() - began, 3),
        cached=cached,
        not_installed=not_installed(job, facts),
        host_limit_bytes=host_limit(job, facts.device.kind, facts.host),
    )


def _remembered(
    job: Job,
    definition: SpaceDefinition,
    run: RunFolder,
    kind: DeviceKind | None,
    cache: PlanCache,
    only_default: bool,
    told: Told,
) -> tuple[Facts, list[EstimateReply], bool]:
    """Facts and replies, and whether a plan that was made before has them."""
    asked = f"{kind!r}, {'the default' if only_default else 'all'}"
    key = cache.key(job, definition, None if kind is None else asked)
    stored = None if key is None else cache.read(key)
    if stored is not None:
        return *stored, True
    facts, replies = _made(job, definition, run, kind, cache, only_default, told)
    if key is not None and all(reply.problem is None for reply in replies):
        cache.write(key, facts, replies)
    return facts, replies, False


def _made(
    job: Job,
    definition: SpaceDefinition,
    run: RunFolder,
    kind: DeviceKind | None,
    cache: PlanCache,
    only_default: bool,
    told: Told,
) -> tuple[Facts, list[EstimateReply]]:
    with servers(run.path, len(os.sched_getaffinity(0))) as started:
        facts = device_facts(survey(job, run, started[0]), kind)
        space = bind(definition, job, facts)
        candidates = (space.default(),) if only_default else space.candidates
        limit = allocator_limit(job, facts, planned_limit(job, facts))
        tasks = path_tasks(job, facts, candidates, rows=run.rows, limit=limit, cache=cache.traces)
        return facts, traced_in_children(tasks, started, run.path / "traces", told)


def known_ceilings(
    facts: Facts, kind: DeviceKind | None, cache: PlanCache, scratch: Path
) -> Ceilings | None:
    """The ceilings of the device: tabled for one that is not here, else measured once."""
    if kind is not None:
        return ceilings_of_kind(kind)
    found = cache.ceilings(facts.device.name)
    if found is not None:
        return found
    scratch.mkdir(parents=True, exist_ok=True)
    with ProbeServer(scratch / "server-ceilings.log") as server:
        return measured_ceilings(facts, cache, server, scratch / "ceilings")


def measured_ceilings(
    facts: Facts, cache: PlanCache, server: ProbeServer, path: Path
) -> Ceilings | None:
    """The ceilings of the device that is here, measured now and remembered."""
    folder = ProbeFolder(path=path)
    path.mkdir(parents=True, exist_ok=True)
    request = {
        "device_kind": facts.device.kind,
        "device_index": facts.device.index,
        "threads": threads(facts),
    }
    write_json(folder.request, request)
    server.run(folder, CEILINGS_WORKER, LIMITS)
    reply = read_json(folder.reply)
    if not isinstance(reply, dict):
        return None
    measured = Ceilings.from_plain(reply["ceilings"])
    if (reply["processor_wait_share"] or 0.0) <= BUSY:  # others' load is not to be remembered
        cache.keep_ceilings(facts.device.name, measured)
    return measured


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
        for server in started:
            server.close()
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
