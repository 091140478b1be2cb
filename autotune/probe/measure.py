"""Probe one candidate, from the parent's side: ask, wait, and name what happened.

What happened is named by `outcome.py`.
"""

import dataclasses
import math
import shutil
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.errors import machine_error
from autotune.facts import devices
from autotune.facts.host import host_limit, memory_kills
from autotune.probe.extensions import compile_before
from autotune.probe.outcome import cut_short, disturbed, is_by_another, name_outcome, of_both
from autotune.probe.protocol import Measurement, ProbeRequest
from autotune.probe.rank_replies import (
    SILENT,
    clear_ranks,
    folder_of_all,
    lagging_ranks,
    rank_folder,
)
from autotune.process.child_server import ChildServer
from autotune.process.disk import full_disk, little_shared_memory
from autotune.process.host_memory import HostMeter
from autotune.process.limits import Limits, Watcher
from autotune.process.messages import ChildFolder, Message, read_json, write_json
from autotune.process.progress import ProgressReader
from autotune.space.trl_config import Settings, device_environment, threads
from autotune.training.spec import Part
from autotune.units import format_bytes

WORKER = "autotune.probe.ranks_worker:probe"
MEET_S = 60.0
"""Seconds without a sign of life, where machines may wait for each other's imports."""
ENDED_S = 1.0
"""Seconds after which a process that has ended is on no driver's list. Chosen, not measured."""
MAKE_ROOM = "make room; what was measured is kept, and a run that is resumed goes on"


def probe_request(chosen: Settings, *, rows: Path, limit: int | None) -> ProbeRequest:
    """Return the request to the child that probes a candidate."""
    job, facts, share = chosen.job, chosen.facts, chosen.vllm
    return ProbeRequest(
        method=job.method,
        config=chosen.config,
        environment=chosen.environment,
        weights=facts.model.weights,
        model_path=facts.model.path,
        device_kind=facts.device.kind,
        device_index=facts.device.index,
        peers=list(facts.device.peers),
        sharding=chosen.sharding.plain(),
        deepspeed=chosen.deepspeed,
        memory_limit_bytes=limit,
        host_limit_bytes=host_limit(job.devices.host_memory, facts.device.kind, facts.host),
        threads=threads(facts, chosen.processes // job.devices.nodes),
        rows=str(rows),
        rows_total=facts.data.rows,
        rows_sampled=facts.data.sampled,
        global_batch=chosen.candidate.global_batch * chosen.sharding.replicas,
        seed=job.seed,
        vllm_bytes=share.awake_bytes if share else 0,
        vllm_asleep_bytes=share.asleep_bytes if share else None,
    )


def measure(
    server: ChildServer,
    folder: ChildFolder,
    request: ProbeRequest,
    limits: Limits,
    watch: Watcher | None = None,
    worker: str | None = None,
) -> Measurement:
    """Run the probe of `request` in `folder`; return its measurement, `busy` where another process
    computes on the GPU before it or after it.

    Raises:
        MachineError: it crashed on a full disk, which says nothing of it.
    """
    occupied = busy_measurement(_gpus(request))
    if occupied is not None:
        return occupied
    compile_before(server, request)
    folder.path.mkdir(parents=True, exist_ok=True)
    clear_ranks(folder.path)
    kills_before = memory_kills()
    write_json(folder.request, request.plain())
    ending = server.run(folder, worker or WORKER, limits, watch, host_meter(request))
    full = full_disk((folder.path, Path(tempfile.gettempdir())))
    for scratch in (folder.scratch, *folder.path.glob("rank-*/scratch")):
        shutil.rmtree(scratch, ignore_errors=True)
    killed = memory_kills() > kills_before
    measurement = name_outcome(ending, read_json(folder.reply), request, kernel_killed=killed)
    if measurement.outcome == "crash" and full is not None:
        folder.reply.unlink(missing_ok=True)  # a run that goes on tries it again
        raise machine_error("the disk is full", where=str(full), hint=MAKE_ROOM)
    if measurement.outcome in ("crash", "timeout") and request.config.get("dataloader_num_workers"):
        measurement = _with_shared_memory(measurement)
    if request.parsed_sharding.num_processes > 1 and measurement.outcome not in ("ok", "stopped"):
        measurement = naming_the_rank(measurement, folder, request)
    if measurement.outcome != "interrupted":
        measurement = _joined_measurement(request) or measurement
    return dataclasses.replace(
        measurement,
        seconds=round(ending.seconds, 4),
        host_peak_bytes=ending.host.peak_bytes,
        host_loading_peak_bytes=ending.host.loading_bytes,
        host_limit_bytes=ending.host.limit_bytes,
    )


def host_meter(request: ProbeRequest) -> HostMeter | None:
    """Return the meter of the host's memory; None where a process on the CPU has it as its
    device."""
    ranks = request.parsed_sharding.num_processes > 1
    if request.device_kind == "cpu" and not ranks and request.host_limit_bytes is None:
        return None
    return HostMeter(request.host_limit_bytes, ranks=ranks)


@dataclass(frozen=True, kw_only=True)
class ProbeTask(Message):
    """A probe as whatever runs it is asked for it.

    Attributes:
        own_s: its own limit of time.
        most_s: seconds that are left for it; None: any. A probe that they cut short is
            `interrupted`: with its own time it might have ended well.
        timed: whether its speed counts: then it is `busy` where others took the cores.
        elsewhere: whether it was made on another machine, and takes as many devices of this one.
        part: what is this machine's of it.
    """

    request: ProbeRequest
    own_s: float
    most_s: float | None = None
    timed: bool = True
    elsewhere: bool = False
    worker: str = field(default_factory=lambda: WORKER)
    part: Part = Part()


def probe_task(
    chosen: Settings,
    *,
    rows: Path,
    limit: int,
    to_beat: float | None = None,
    most_s: float = math.inf,
    timed: bool = True,
    elsewhere: bool = False,
) -> ProbeTask:
    """Return the task that probes a candidate within the job's own time limit.

    Args:
        to_beat: tokens/s of the fastest so far.
    """
    request = probe_request(chosen, rows=rows, limit=limit)
    return ProbeTask(
        request=dataclasses.replace(request, to_beat_tokens_per_s=to_beat),
        own_s=60 * chosen.job.budget.probe_minutes,
        most_s=most_s if math.isfinite(most_s) else None,
        timed=timed,
        elsewhere=elsewhere,
    )


def probed(
    server: ChildServer, folder: ChildFolder, plain: Any, watch: Watcher | None = None
) -> Measurement:
    """Probe as a `ProbeTask`, as plain data, says; once more where another process ended it, unless
    other machines have a part.

    Raises:
        MachineError: it crashed on a full disk, which says nothing of it.
    """
    task = ProbeTask.from_plain(plain)
    request = dataclasses.replace(task.request, part=task.part)
    request = _with_devices_here(request) if task.elsewhere else request
    task = dataclasses.replace(task, request=request)
    most_s = math.inf if task.most_s is None else task.most_s
    measurement = _in_time(server, folder, task, most_s, watch)
    by_another = is_by_another(measurement) and task.part.nodes == 1
    if by_another and most_s > measurement.seconds:
        again = _in_time(server, folder, task, most_s - measurement.seconds, watch)
        measurement = of_both(measurement, again)
    measurement = disturbed(measurement) if task.timed else measurement
    if folder.path.exists() and task.part.nodes == 1:  # else it is a part of the measurement
        write_json(folder.measurement, measurement.plain())
    return measurement


def shares_its_host(request: ProbeRequest) -> bool:
    """True if a probe's speed depends on what a whole machine shares: cores, memory, disks."""
    return (
        request.device_kind == "cpu"
        or bool(request.config.get("dataloader_num_workers"))
        or request.parsed_sharding.offloads
    )


def _with_devices_here(request: ProbeRequest) -> ProbeRequest:
    """Return a request with the devices that this process is shown."""
    device = devices.detect(request.device_kind, 0, 1 + len(request.peers))
    return dataclasses.replace(
        request,
        device_index=device.index,
        peers=list(device.peers),
        environment={**request.environment, **device_environment(device)},
    )


def _with_shared_memory(measurement: Measurement) -> Measurement:
    """Return a failure of a probe with data workers, with a remark if shared memory is short:
    through it they pass batches, and without it they crash or hang."""
    shared = little_shared_memory()
    if shared is None:
        return measurement
    remark = f"data workers need shared memory, and /dev/shm has {format_bytes(shared)} left"
    reason = f"{measurement.reason}; {remark} (of a container: --shm-size)"
    return dataclasses.replace(measurement, reason=reason)


def _in_time(
    server: ChildServer,
    folder: ChildFolder,
    task: ProbeTask,
    most_s: float,
    watch: Watcher | None,
) -> Measurement:
    """Return a probe that has its own limit of time, or less where there is less."""
    limits = Limits(wall_s=max(min(task.own_s, most_s), 0.0))
    if task.part.nodes > 1:
        limits = dataclasses.replace(limits, stall_s=MEET_S)
    measurement = measure(server, folder, task.request, limits, watch, task.worker)
    return cut_short(measurement, task.own_s, most_s)


def _gpus(request: ProbeRequest) -> tuple[int, ...]:
    return (request.device_index, *request.peers) if request.device_kind == "cuda" else ()


def busy_measurement(gpus: Iterable[int]) -> Measurement | None:
    """Return the `busy` measurement where other processes compute on the GPUs; None: none do."""
    for index in gpus:
        gpu = devices.gpu(index)
        if gpu.is_busy:
            return Measurement(
                outcome="busy",
                reason=describe_processes(gpu),
                processes=[dataclasses.asdict(process) for process in gpu.processes],
            )
    return None


def _joined_measurement(request: ProbeRequest) -> Measurement | None:
    """Return the same after a probe: others are looked for twice, as a driver may list a process
    that has just ended."""
    if busy_measurement(_gpus(request)) is None:
        return None
    time.sleep(ENDED_S)
    return busy_measurement(_gpus(request))


def describe_processes(gpu: devices.DeviceFacts) -> str:
    """Return the processes that compute on a GPU in words, with pids and memory."""
    processes = ", ".join(
        f"pid {p.pid}"
        + (f" ({p.name})" if p.name else "")
        + (f" holds {format_bytes(p.used_bytes)}" if p.used_bytes is not None else "")
        for p in gpu.processes
    )
    return f"GPU {gpu.index} is in use by {processes}"


def naming_the_rank(
    measurement: Measurement, folder: ChildFolder, request: ProbeRequest
) -> Measurement:
    """Return a failure of several ranks with the rank that failed, where that is known."""
    rank, reason = measurement.failed_rank, measurement.reason
    root, count = folder_of_all(folder.path, request.part), request.parsed_sharding.num_processes
    if rank is None and (silent := read_json(folder.path / SILENT)) is not None:
        rank = int(silent["rank"])
    if rank is None and measurement.outcome in ("timeout", "oom"):  # oom: where it hung
        readers = [ProgressReader(rank_folder(root, n).progress) for n in range(count)]
        late_ranks = lagging_ranks([len(reader.new_events()) for reader in readers])
        if late_ranks:
            rank, names = late_ranks[0], " and ".join(map(str, late_ranks))
            reason = f"{reason} (behind the others: {names})"
    if rank is None:
        return measurement
    return dataclasses.replace(
        measurement, failed_rank=rank, reason=f"rank {rank} of {count}: {reason}"
    )
