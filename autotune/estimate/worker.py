"""The child's side of a plan: trace one variant, and estimate each of its micro-batches.

Raises nothing: what cannot be traced is named in the reply.
"""

import gc
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.estimate.protocol import POINT, EstimateReply, EstimateRequest, PointReply
from autotune.job.methods import METHODS
from autotune.process.messages import ChildFolder, read_json, write_json
from autotune.process.progress import Progress

if TYPE_CHECKING:
    from autotune.estimate.variants.retracing import Retracing


def estimate(path: Path) -> None:
    """Answer `path/request.json` with an `EstimateReply`."""
    folder = ChildFolder(path=path)
    tempfile.tempdir = str(path)  # what a killed child leaves is removed with its folder
    request = EstimateRequest.from_plain(read_json(folder.request))
    fresh_bytes = process_bytes()
    try:
        reply = _answer(request, fresh_bytes, Progress(folder.progress))
    except MemoryError:
        raise
    except Exception as error:
        traceback.print_exc()
        first = (str(error).strip().splitlines() or [""])[0][:300]
        reply = EstimateReply(process_bytes=fresh_bytes, problem=f"{type(error).__name__}: {first}")
    write_json(folder.reply, reply.plain())


def process_bytes() -> int:
    """Return what a fresh process with the training stack holds (see `probe/memory.py`)."""
    from autotune.process.proc import process_status, unmapped_bytes

    return process_status("VmRSS") + unmapped_bytes()


def _answer(request: EstimateRequest, fresh_bytes: int, progress: Progress) -> EstimateReply:
    gc.freeze()  # what was imported is not looked through again and again
    limits = (request.limit_bytes, *request.other_limits)
    points: list[dict[int, PointReply]] = [{} for _ in limits]
    variant = _estimates_of(request)
    gc.freeze()
    for index in variant.order(request.points):
        for limit, answers in zip(limits, points, strict=True):
            variant.hold_to(limit)
            answers[index] = variant.point(request.points[index])
        progress.tell(POINT, index=index)
    in_order = [[answers[index] for index in range(len(answers))] for answers in points]
    return EstimateReply(
        process_bytes=fresh_bytes,
        points=in_order[0],
        at_limits=in_order[1:],
        shapes=variant.shapes(),
        optimizer_work=variant.optimizer_work(),
    )


def _estimates_of(request: EstimateRequest) -> "Retracing":
    """Return the estimator of the request's kind of variant."""
    if METHODS[request.method].online:
        from autotune.estimate.variants.rollouts import RolloutEstimates

        return RolloutEstimates(request)
    if request.engine:
        from autotune.estimate.variants.sharded import ShardedEstimates

        return ShardedEstimates(request)
    from autotune.estimate.variants.offline import OfflineEstimates

    return OfflineEstimates(request)
