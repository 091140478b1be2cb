"""Each case for real, in as many processes as it has ranks, and traced in one.

    LD_PRELOAD=live_bytes.so python ranks.py cases.json results.jsonl

Imports the stack once; every rank and every trace is a fork of it.
"""

import ctypes
import dataclasses
import json
import logging
import os
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Any

os.environ |= {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
warnings.simplefilter("ignore")
logging.disable(logging.WARNING)

import deepspeed  # noqa: E402, F401
import torch  # noqa: E402
import transformers  # noqa: E402
import transformers.training_args as arguments  # noqa: E402

from autotune.estimate.formula.devices import with_buckets  # noqa: E402
from autotune.estimate.protocol import TraceRequest  # noqa: E402
from autotune.estimate.records.events import live_bytes  # noqa: E402
from autotune.estimate.records.steps import since_training, split_by_place  # noqa: E402
from autotune.estimate.tracing.engines import rank_environment, sharded_config  # noqa: E402
from autotune.estimate.tracing.trace import (  # noqa: E402
    feed,
    row_dataset,
    trace_config,
    trace_steps,
    trainer_spec,
)
from autotune.space.sharding.sharding import DATA_PARALLEL, Sharding, heaviest_ranks  # noqa: E402
from autotune.training.distributed import state_on_cpu  # noqa: E402
from autotune.training.registry import family  # noqa: E402
from benchmarks.sharding_exactness.cases import Case  # noqa: E402

PORT, LIMIT_S = 29600, 1800
arguments.is_torch_bf16_gpu_available = lambda: True  # else `bf16` is refused on a CPU
PRELOADED = ctypes.CDLL(None)


class Peaks(transformers.TrainerCallback):
    """The peak from the first batch on: by then every engine is there."""

    def __init__(self) -> None:
        self._read: Any = PRELOADED.autotune_peak_bytes
        self._read.restype = ctypes.c_size_t

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Forget what came before."""
        self._read()

    def peak_bytes(self) -> int:
        """Since then."""
        return int(self._read())


def real_rank(request: TraceRequest, rank: int, port: int) -> dict[str, Any]:
    """What one rank of several takes, and which engine it was."""
    sharding = Sharding(**request.sharding or {})
    os.environ |= rank_environment(sharding, rank)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as scratch:
        config = trace_config(request, min(request.micro_steps), Path(scratch))
        if sharding.distributed_type not in DATA_PARALLEL:
            torch.distributed.init_process_group("gloo")
            state_on_cpu(sharding, "gloo")
            config = sharded_config(config, request.deepspeed, Path(scratch))
        trains = family(request.method)
        _, training, model = trains.parse(config, Path(scratch))
        training.max_steps = len(request.steps)
        trainer = trains.trainer(trainer_spec(request), training, model, row_dataset(request))
        feed(trainer, request)
        peaks = Peaks()
        trainer.add_callback(peaks)
        loss = trainer.train().training_loss
        return {
            "peak_bytes": peaks.peak_bytes(),
            "distributed_type": str(trainer.accelerator.distributed_type.value),
            "engine": type(trainer.model_wrapped).__name__,
            "optimizer": _optimizer(trainer),
            "loss": loss,
        }


def _optimizer(trainer: Any) -> str:
    """The class that steps, under accelerate's and DeepSpeed's."""
    found = trainer.optimizer
    while not isinstance(found, torch.optim.Optimizer) or hasattr(found, "optimizer"):
        found = found.optimizer
    return type(found).__name__


def traced(request: TraceRequest) -> dict[str, Any]:
    """What the traces of the ranks one of which needs most say."""
    ranks = heaviest_ranks(Sharding(**request.sharding or {}))
    return max((_traced(request, rank) for rank in ranks), key=itemgetter("estimate_bytes"))


def _traced(request: TraceRequest, rank: int) -> dict[str, Any]:
    sharding, began = Sharding(**request.sharding or {}), time.perf_counter()
    spread = sharding.distributed_type not in DATA_PARALLEL
    one = dataclasses.replace(
        request, sharding=request.sharding if spread else None, rank=rank if spread else 0
    )
    reply = trace_steps(one)
    events = [tuple(event) for event in reply.events]
    events = since_training(events if spread else with_buckets(events))
    use, host = live_bytes(events), live_bytes(split_by_place(events)[1])
    return {
        "estimate_bytes": use.peak_bytes,
        "host_bytes": host.peak_bytes,
        "parts": use.parts,
        "peak_at": [use.phase, use.operator],
        "trace_s": round(time.perf_counter() - began, 2),
    }


def forked(work: Callable[[], dict[str, Any]], reply: Path) -> int:
    """The process that does it; it writes what came out, or why nothing did."""
    process = os.fork()
    if process:
        return process
    with reply.with_suffix(".log").open("w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        torch.set_num_threads(1)
        try:
            text = json.dumps(work())
        except BaseException:
            text = json.dumps({"failure": traceback.format_exc()[-2000:]})
        reply.write_text(text, encoding="utf-8")
        os._exit(0)


def replies(files: dict[int, Path]) -> list[dict[str, Any]]:
    """What the processes wrote; those that take too long, or whose peers failed, are ended."""
    waiting, end = dict(files), time.monotonic() + LIMIT_S
    while waiting:
        process, _ = os.waitpid(-1, os.WNOHANG)
        done = waiting.pop(process, None)
        failed = done is not None and ("failure" in _read(done))
        if failed or time.monotonic() > end:
            for left in waiting:
                os.kill(left, 9)
            end = float("inf")
        if not process:
            time.sleep(0.05)
    return [_read(file) for file in files.values()]


def _read(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {"failure": "ended without a word"}
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def compared(case: Case, models: Path, scratch: Path, port: int) -> dict[str, Any]:
    """The row of one case."""
    request = case.request(models)
    scratch.mkdir()
    began = time.perf_counter()
    ranks = replies(
        {
            forked(lambda rank=rank: real_rank(request, rank, port), scratch / f"{rank}"): scratch
            / f"{rank}"
            for rank in range(case.ranks)
        }
    )
    row = {"name": case.name, "case": case.plain(), "ranks": ranks}
    row["real_s"] = round(time.perf_counter() - began, 2)
    row |= replies({forked(lambda: traced(request), scratch / "trace"): scratch / "trace"})[0]
    failures = [one["failure"] for one in (*ranks, row) if "failure" in one]
    if failures:
        return {**row, "failure": failures[0]}
    row["real_bytes"] = max(one["peak_bytes"] for one in ranks)
    return {**row, "error": row["estimate_bytes"] / row["real_bytes"] - 1}


def main() -> None:
    """Every case of a file; a line each is added to the results."""
    asked = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(prefix="sharding-") as scratch:
        for number, plain in enumerate(asked["cases"]):
            port = PORT + (os.getpid() + number) % 2000
            row = compared(Case(**plain), Path(asked["models"]), Path(scratch, str(number)), port)
            with Path(sys.argv[2]).open("a", encoding="utf-8") as file:
                file.write(json.dumps({**row, "about": asked["about"]}) + "\n")
            print(row["name"], row.get("failure") or f"{row['error']:+.4%}", flush=True)
    assert PRELOADED.autotune_allocations() > 0, "live_bytes.so was not preloaded"


if __name__ == "__main__":
    main()
