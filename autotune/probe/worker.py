"""The child's side of a probe: read the request, train, write the reply.

Runs in a process of its own, forked from the forkserver. What goes wrong here is named here, where
the exception is at hand; what cannot be named from inside (a kill, a hang) the parent names.
"""

import os
import time
import traceback
from dataclasses import asdict

from autotune.job.methods import METHODS
from autotune.probe.memory import CpuMemory, CudaMemory, with_vllm
from autotune.probe.outcome import beyond_limit, outcome_and_remark, outcome_of
from autotune.probe.protocol import Failure, Measurement, ProbeRequest
from autotune.probe.worker import train_offline, train_online
from autotune.process.messages import ChildFolder, write_json
from autotune.process.out_of_memory import missing_on_host, phase_of
from autotune.training.spec import Place


class Stages:
    """How long each stage took, and which one is running."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.current = "start"
        self._since = time.monotonic()

    def enter(self, name: str) -> None:
        """The running stage ends, `name` begins."""
        now = time.monotonic()
        self.seconds[self.current] = round(now - self._since, 4)
        self.current, self._since = name, now


def probe(folder: ChildFolder, request: ProbeRequest, place: Place | None = None) -> None:
    """Train a candidate for a few steps and write the reply; `place`: as one of several ranks."""
    os.environ.update(request.environment)
    memory: CpuMemory | CudaMemory | None = None
    stages = Stages()
    try:
        memory = _memory(request, place)
        measurement = _measure(request, folder, memory, stages, place)
    except BaseException as error:
        if memory is not None:
            memory.lift()
        measurement = _failed_measurement(request, memory, stages, error)
    stages.enter("end")
    data = {**measurement.plain(), "stages_s": stages.seconds}
    write_json(folder.reply, data)


def _memory(request: ProbeRequest, place: Place | None) -> CpuMemory | CudaMemory:
    if request.device_kind == "cuda":
        rank = place.rank if place else 0
        if place:  # the allocator's limit is set on the current device
            import torch

            torch.cuda.set_device(rank)
        index = [request.device_index, *request.peers][rank]
        return CudaMemory(request.process_limit_bytes, index)
    return CpuMemory(request.process_limit_bytes)


def _measure(
    request: ProbeRequest,
    folder: ChildFolder,
    memory: CpuMemory | CudaMemory,
    stages: Stages,
    place: Place | None,
) -> Measurement:
    """Return what a training that came to its end took; it may have been too much."""
    import torch

    torch.set_num_threads(request.threads)
    if place is not None:
        from autotune.training.distributed import join

        stages.enter("join")
        join(place, request.parsed_sharding, cuda=request.device_kind == "cuda")
    train = train_online if METHODS[request.method].online else train_offline
    fields, speed = train(request, folder, memory, stages)
    figures = with_vllm(memory.figures(), request, fields.get("resident_bytes"))
    beyond_bytes = beyond_limit(figures["peak_memory_bytes"], request.memory_limit_bytes)
    outcome, remark = outcome_and_remark(beyond_bytes, figures["allocator_retries"] or 0)
    return Measurement(
        outcome=outcome,
        reason=f"measured {fields['micro_steps_measured']} micro-steps{remark}",
        memory_limit_bytes=request.memory_limit_bytes,
        missing_bytes=beyond_bytes or None,
        **fields,
        **asdict(speed),
        **figures,
    )


def _failed_measurement(
    request: ProbeRequest,
    memory: CpuMemory | CudaMemory | None,
    stages: Stages,
    error: BaseException,
) -> Measurement:
    outcome = outcome_of(error, stages.current, request.device_kind)
    failure = Failure(
        type=type(error).__name__,
        message=str(error)[:4000],
        traceback="".join(traceback.format_exception(error))[-8000:],
        stage=stages.current,
        knobs=getattr(error, "knobs", []),
    )
    figures = with_vllm(memory.figures(), request) if memory is not None else {}
    missing = memory.missing_bytes(error) if memory is not None and outcome == "oom" else None
    if outcome == "host_oom":
        missing = missing_on_host(error)
    where = f"stage {failure.stage}"
    if failure.stage == "train" and outcome in ("oom", "host_oom") and (phase := phase_of(error)):
        where = f"the {phase}"
    first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return Measurement(
        outcome=outcome,
        reason=f"{failure.type} in {where}: {first_line[:300]}",
        memory_limit_bytes=request.memory_limit_bytes,
        missing_bytes=missing,
        failure=failure.plain(),
        **figures,
    )
