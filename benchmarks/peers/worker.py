"""The child: one point, run for real once, and what each estimator says of it."""

import time
from pathlib import Path
from typing import Any

from autotune.estimate.protocol import TraceRequest
from autotune.process.messages import ChildFolder, write_json
from benchmarks.estimate_exactness.worker import asked_of


def compare(path: Path) -> None:
    """Truth and all estimates of the point that `path` asks for."""
    import torch

    from autotune.estimate.records import events
    from autotune.estimate.tracing.trace import trace_steps
    from benchmarks import real_steps
    from benchmarks.peers.estimators import PEERS

    folder = ChildFolder(path=path)
    request = asked_of(folder)

    def autotune(wanted: TraceRequest) -> int:
        return events.live_bytes(trace_steps(wanted).events).peak_bytes

    told: dict[str, Any] = {}
    for name, estimator in {"autotune": autotune, **PEERS}.items():
        began = time.perf_counter()
        try:
            told[name] = {"bytes": estimator(request)}
        except Exception as error:  # what a user of it would meet
            told[name] = {"bytes": None, "failure": f"{type(error).__name__}: {error}"[:300]}
        told[name]["seconds"] = round(time.perf_counter() - began, 2)
    torch.manual_seed(request.seed)
    real = real_steps.real_peak_bytes(request)
    write_json(folder.reply, {"real_bytes": real, "told": told})
