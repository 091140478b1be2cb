"""The child's side of a plan: trace one variant, and say what each of its micro-batches takes.

Raises nothing: what cannot be traced is told in the reply.
"""

import gc
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from autotune.estimate.protocol import POINT, EstimateReply, EstimateRequest, Point, PointReply
from autotune.estimate.variant import engine_is_traced
from autotune.job.methods import METHODS
from autotune.process.messages import ChildFolder, read_json, write_json
from autotune.process.progress import Progress


def estimate(path: Path) -> None:
    """Answer `path/request.json` with an `EstimateReply`."""
    folder = ChildFolder(path=path)
    tempfile.tempdir = str(path)  # what a killed child leaves is removed with its folder
    plain = read_json(folder.request) or {}
    points = [Point.from_plain(point) for point in plain["points"]]
    request = EstimateRequest.from_plain({**plain, "points": points})
    began = time.monotonic()
    fresh_bytes = process_bytes()
    try:
        reply = _answer(request, fresh_bytes, began, Progress(folder.progress))
    except MemoryError:
        raise
    except Exception as error:
        traceback.print_exc()
        first = (str(error).strip().splitlines() or [""])[0][:300]
        reply = EstimateReply(
            points=[],
            shapes=[],
            optimizer_work={},
            process_bytes=fresh_bytes,
            policy={},
            seconds=time.monotonic() - began,
            problem=f"{type(error).__name__}: {first}",
        )
    write_json(folder.reply, reply.plain())


def process_bytes() -> int:
    """What a fresh process with the training stack holds (see `probe/memory.py`)."""
    from autotune.process.proc import process_status, unmapped_bytes

    return process_status("VmRSS") + unmapped_bytes()


def _point_replies(
    request: EstimateRequest, reply_to: Callable[[Point], PointReply], progress: Progress
) -> Iterator[PointReply]:
    """The reply to every point; progress is told of each."""
    for index, point in enumerate(request.points):
        yield reply_to(point)
        progress.tell(POINT, index=index)


def _answer(
    request: EstimateRequest, fresh_bytes: int, began: float, progress: Progress
) -> EstimateReply:
    gc.freeze()  # what was imported is not looked through again and again
    if METHODS[request.method].online:
        from autotune.estimate.variants.rollouts import RolloutEstimates

        rollouts = RolloutEstimates(request)
        return EstimateReply(
            points=list(_point_replies(request, rollouts.point, progress)),
            shapes=[],
            optimizer_work={},
            process_bytes=fresh_bytes,
            policy=rollouts.policy,
            seconds=round(time.monotonic() - began, 3),
        )
    if engine_is_traced(request.method, (request.sharding or {}).get("distributed_type")):
        from autotune.estimate.variants.sharded import ShardedEstimates

        sharded = ShardedEstimates(request)
        return EstimateReply(
            points=list(_point_replies(request, sharded.point, progress)),
            shapes=sharded.shapes(),
            optimizer_work=sharded.optimizer_work(),
            process_bytes=fresh_bytes,
            policy=sharded.policy,
            seconds=round(time.monotonic() - began, 3),
        )
    from autotune.estimate.variants.offline import OfflineEstimates

    offline = OfflineEstimates(request)
    gc.freeze()
    return EstimateReply(
        points=list(_point_replies(request, offline.point, progress)),
        shapes=offline.shapes(),
        optimizer_work=offline.optimizer_work(),
        process_bytes=fresh_bytes,
        policy=offline.traces.policy,
        seconds=round(time.monotonic() - began, 3),
    )
