"""The child: the micro-batches that a candidate's sampler forms, and the work of a few of them."""

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autotune.estimate.protocol import MicroBatch, TraceRequest
from autotune.probe.protocol import ProbeRequest
from autotune.process.messages import ChildFolder, read_json, write_json
from benchmarks.speed_model.works import work_counts

TRACED = (0.0, 0.35, 0.7, 1.0)
"""Which micro-batches of a sample are traced, by the quantile of their size."""
SHORTER = 3
"""By how much all rows but the first are shorter in a traced micro-batch: so they are padded."""


def trace(path: Path) -> None:
    """Answer the request of a probe with its sample and its traced work."""
    import torch
    from trl.trainer import sft_trainer

    from autotune.estimate.tracing.trace import trace_steps
    from autotune.training.batch_plan import Rows, batching_of, plan

    torch.set_num_threads(1)
    folder = ChildFolder(path=path)
    request = ProbeRequest.from_plain(read_json(folder.request))
    began = time.perf_counter()
    batching = batching_of(
        "sft", request.config, global_batch=request.global_batch, seed=request.seed
    )
    planned = plan(
        Rows(request.rows, "sft"), batching, request.rows_total, sampled=request.rows_sampled
    )
    rows = 1 if batching.flat else batching.micro_batch
    lengths = sorted(padded // rows for _, padded in planned.sample)
    chosen = sorted({lengths[round(share * (len(lengths) - 1))] for share in TRACED})
    steps = [micro_batch(n, batching.micro_batch, flat=batching.flat) for n in chosen]
    asked = TraceRequest(
        method="sft",
        config=request.config,
        model_path=request.model_path,
        layers=None,
        cuda=None,
        steps=steps,
        micro_steps=[min(request.config["gradient_accumulation_steps"], 2)] * len(steps),
    )
    reply = trace_steps(asked)
    found = {
        "sample": planned.sample,
        "micro_batch": batching.micro_batch,
        "rows": rows,
        "chunk_rows": sft_trainer._CHUNKED_LM_HEAD_CHUNK_SIZE,
        "lengths": chosen,
        "micro": [_plain(work) for work in reply.micro_work],
        "optimizer": _plain(reply.optimizer_work),
        "seconds": time.perf_counter() - began,
    }
    write_json(folder.reply, found)


def micro_batch(length: int, rows: int, *, flat: bool) -> MicroBatch:
    """One of this padded length; or of this many tokens, where rows are laid behind each other."""
    if not flat:
        return MicroBatch(lengths=(length, *[max(length - SHORTER, 1)] * (rows - 1)))
    each = [length // rows] * rows
    each[0] += length - sum(each)
    return MicroBatch(lengths=tuple(each))


def _plain(work: Sequence[Any]) -> list[Any]:
    return [[dataclasses.astuple(one), times] for one, times in work_counts(work)]


class _Clock:
    """In place of the module `time`, where the machine is shared: what others take is not timed."""

    perf_counter = staticmethod(time.process_time)
    monotonic = staticmethod(time.monotonic)


def probe_by_processor_time(path: Path) -> None:
    """A probe that times its steps by the processor's time."""
    from autotune.probe import ranks_worker
    from autotune.process import clock
    from autotune.training.patching import replaced

    with replaced(clock, "now", time.process_time):
        ranks_worker.probe(path)


def ceilings_by_processor_time(path: Path) -> None:
    """Ceilings in the processor's time."""
    from autotune.estimate.speed.measuring import clock
    from autotune.estimate.speed.measuring import worker as bench_ceilings
    from autotune.training.patching import replaced

    with replaced(clock, "time", _Clock), replaced(bench_ceilings, "time", _Clock):
        bench_ceilings.measure(path)
