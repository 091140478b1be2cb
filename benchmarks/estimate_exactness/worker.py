"""The child: one combination traced, then run for real, both on one thread of the CPU."""

import time
from pathlib import Path
from typing import Any

from autotune.estimate.protocol import TraceRequest
from autotune.process.messages import ChildFolder, read_json, write_json


def asked_of(folder: ChildFolder) -> TraceRequest:
    """The steps that a child is asked for; it is quiet and on one thread from here on."""
    import logging
    import warnings

    from benchmarks import real_steps

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    real_steps.threads(1)
    return TraceRequest.from_plain(read_json(folder.request))


def compare(path: Path) -> None:
    """Estimate and truth of the combination that `path` asks for."""
    import torch

    from autotune.estimate.records import events as record
    from autotune.estimate.tracing import tracer
    from autotune.estimate.tracing.trace import trace_steps
    from autotune.training.patching import replaced
    from benchmarks import real_steps

    folder = ChildFolder(path=path)
    request = asked_of(folder)
    unmerged: list[int] = []
    merge = tracer.merge_accumulation

    def merge_accumulation(events: list[Any]) -> list[Any]:
        unmerged.append(record.live_bytes(e for e in events if e[0] != "i").peak_bytes)
        return merge(events)

    began = time.perf_counter()
    with replaced(tracer, "merge_accumulation", merge_accumulation):
        reply = trace_steps(request)
    traced = time.perf_counter()
    use = record.live_bytes(reply.events)
    torch.manual_seed(request.seed)
    real_began = time.perf_counter()
    real = real_steps.real_peak_bytes(request)
    found = {
        "estimate_bytes": use.peak_bytes,
        "estimate_unmerged_bytes": unmerged[0],
        "real_bytes": real,
        "error": use.peak_bytes / real - 1,
        "trace_s": round(traced - began, 2),
        "real_s": round(time.perf_counter() - real_began, 2),
        "peak_at": [use.phase, use.operator],
        "parts": use.parts,
        "policy": reply.policy,
    }
    write_json(folder.reply, found)
