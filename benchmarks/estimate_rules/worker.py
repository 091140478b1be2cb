"""The child: one candidate estimated as a plan does it, and traced whole at its own size."""

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from autotune.estimate.allocator.replay import replayed
from autotune.estimate.protocol import (
    EstimateRequest,
    MicroBatch,
    Point,
    PointReply,
    TraceReply,
    TraceRequest,
)
from autotune.estimate.records.events import Work, work_from_plain
from autotune.estimate.records.layers import CHUNKS
from autotune.estimate.variants.micro_batches import Worst, chunk_count
from autotune.estimate.variants.offline import OfflineEstimates, chunking_of
from autotune.process.messages import ChildFolder, read_json, write_json
from autotune.training.batch_plan import Batching, Rows, plan
from benchmarks.estimate_rules.cases import LONGEST, Case

RULES = {"workspace_bytes": 8519680, "flash": True, "cudnn_first": False}
"""Of compute capability 8.0."""
NEIGHBOURS = 3
"""Sizes asked for together: with fewer of them than shapes to scale from, each is traced itself."""


def compare(path: Path) -> None:
    """The errors of the case that `path` asks for."""
    import logging
    import warnings

    import torch

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    folder = ChildFolder(path=path)
    asked = read_json(folder.request) or {}
    case = Case(**asked["case"])
    rows = write_rows(case, folder.path / "rows")
    request = estimate_request(case, asked["model_path"], rows)
    began = time.perf_counter()
    estimates = OfflineEstimates(request)
    traced = time.perf_counter()
    replies = [estimates.point(point) for point in request.points[:2]]
    scaled = time.perf_counter()
    worst, truth = whole_trace(case, request)
    ended = time.perf_counter()
    found = {
        **memory_errors(replies, truth),
        **work_errors(estimates, request, worst, truth),
        "method": replies[0].method,
        "whole": estimates.traces.traced_layers == case.layers,
        "shapes": estimates.traces.traced(),
        "size": worst.size,
        "tokens": sum(worst.lengths),
        "chunks": truth.chunks[1],
        "trace_s": round(traced - began, 2),
        "scale_s": round((scaled - traced) / len(replies), 2),
        "whole_s": round(ended - scaled, 2),
    }
    write_json(folder.reply, found)


def write_rows(case: Case, folder: Path) -> Path:
    """The data, tokenized."""
    from datasets import Dataset

    from autotune.facts.tokenizing import described

    rows = []
    for length in case.lengths():
        masked = length - max(round(length * case.labelled), 1)
        ids = [3] * length
        rows.append({"input_ids": ids, "labels": [-100] * masked + ids[masked:]})
    described("sft", Dataset.from_list(rows)).save_to_disk(folder)
    return folder


def estimate_request(case: Case, model_path: str, rows: Path) -> EstimateRequest:
    """The case on both kinds of segments; then neighbours, so that there is much to scale to."""
    points = [point_of(case, case.rows, expandable=expandable) for expandable in (False, True)]
    points += [point_of(case, case.rows - n, expandable=False) for n in range(1, NEIGHBOURS)]
    return EstimateRequest(
        method="sft",
        config=case.config(),
        model_path=model_path,
        model=case.model,
        versions={},
        layers=case.layers,
        cuda=RULES,
        rows=str(rows),
        rows_total=len(case.lengths()),
        rows_sampled=False,
        points=points,
        limit_bytes=None,
        cache=None,
        seed=0,
    )


def point_of(case: Case, micro_batch: int, *, expandable: bool) -> Point:
    """The case with this many rows a micro-batch."""
    batching = {
        "method": "sft",
        "micro_batch": micro_batch,
        "global_batch": micro_batch * case.accumulation,
        "max_length": LONGEST,
        "padding_free": case.flat,
        "packing": False,
        "packing_strategy": "bfd",
        "keep_end": False,
        "grouped": False,
        "pad_to_multiple_of": None,
        "seed": 0,
    }
    return Point(
        batching=batching,
        accumulates=case.accumulation > 1,
        expandable_segments=expandable,
        optim=None if case.optimizer == "adamw_torch_fused" else case.optimizer,
    )


def whole_trace(case: Case, request: EstimateRequest) -> tuple[Worst, TraceReply]:
    """Two steps of the case's worst micro-batch: the first one makes the optimizer's states."""
    from autotune.estimate.tracing.trace import trace_steps

    batching = Batching(**request.points[0].batching)
    rows = plan(Rows(request.rows, "sft"), batching, request.rows_total, sampled=False).worst
    worst = Worst(
        lengths=tuple(len(row["input_ids"]) for row in rows),
        labelled=sum(label != -100 for row in rows for label in row["labels"][1:]),
        flat=case.flat,
    )
    asked = TraceRequest(
        method="sft",
        config={**request.config, "optim": case.optimizer},
        model_path=request.model_path,
        layers=None,
        cuda=request.cuda,
        steps=[MicroBatch(lengths=worst.lengths, labelled=case.labelled)] * 2,
        micro_steps=[case.accumulation] * 2,
    )
    return worst, trace_steps(asked)


def memory_errors(replies: Sequence[PointReply], truth: TraceReply) -> dict[str, Any]:
    """Relative errors of the peaks, and what they are errors of."""
    events = [tuple(event) for event in truth.events]
    fixed, expandable = (replayed(events, None, expandable_segments=mode) for mode in (False, True))
    return {
        "allocated_bytes": fixed.use.peak_bytes,
        "reserved_bytes": fixed.reserved_bytes,
        "expandable_bytes": expandable.reserved_bytes,
        "allocated_error": replies[0].peak_allocated_bytes / fixed.use.peak_bytes - 1,
        "reserved_error": replies[0].peak_reserved_bytes / fixed.reserved_bytes - 1,
        "expandable_error": replies[1].peak_reserved_bytes / expandable.reserved_bytes - 1,
        "peak_at": [fixed.use.phase, fixed.use.operator],
        "same_peak": (replies[0].phase, replies[0].operator)
        == (fixed.use.phase, fixed.use.operator),
    }


def work_errors(
    estimates: OfflineEstimates, request: EstimateRequest, worst: Worst, truth: TraceReply
) -> dict[str, Any]:
    """Relative errors of the work of a micro-step."""
    keys = estimates.traces.traced()
    longest = max(length for _, length, _ in keys)
    fitting = [key for key in keys if key[1] == longest and key[2] == worst.padded]
    counts = {key: estimates.traces.shape(key).chunks for key in fitting}
    fitting = [key for key in fitting if not 0 < counts[key] < CHUNKS.smallest]  # too few to scale
    chunks = chunk_count(worst, chunking_of(request))
    whole = [work_from_plain(row) for row in truth.micro_work[1]]
    scaled = estimates.traces.work(fitting, worst.size, chunks)
    found: dict[str, Any] = {"flops": _flops((work, 1) for work in whole)}
    found["flops_error"] = _flops(scaled) / found["flops"] - 1
    moved = sum(work.moved_bytes for work in whole)
    found["moved_error"] = sum(work.moved_bytes * times for work, times in scaled) / moved - 1
    found["operators_error"] = sum(times for _, times in scaled) / len(whole) - 1
    return found


def _flops(works: Iterable[tuple[Work, int]]) -> int:
    return sum(work.flops * times for work, times in works)
