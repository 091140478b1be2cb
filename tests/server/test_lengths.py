"""An answer planned at other lengths, by the real command."""

import json
import time
from pathlib import Path
from typing import Any, cast

import pytest

from autotune.server.store.values import Lease
from autotune.server.worker import lengths as module
from autotune.server.worker.door import Door
from autotune.server.worker.lengths import LengthsTask
from tests.cpu.conftest import LLAMA, write_model

KNOBS: dict[str, Any] = {
    "max_length": 64,
    "global_batch_size": 4,
    "attn_implementation": "sdpa",
    "gradient_checkpointing": False,
    "loss_type": "nll",
    "optim": "adamw_torch_fused",
    "padding_free": False,
    "train_sampling_strategy": "random",
    "use_liger_kernel": False,
    "activation_offloading": False,
}
JOB = """
model: model/config.json
dataset: {lengths: {max: 64, p50: 20, rows: 100}}
global_batch_size: 4
max_length: 64
"""


class Shelf:
    """Keeps what a worker would send."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def keep_file(self, name: str, id: str, file: str, content: bytes) -> None:
        """Keep a file."""
        self.files[file] = content


def task_in(folder: Path, memory_bytes: int = 2**40) -> LengthsTask:
    write_model(folder / "model", LLAMA)
    lease = Lease(
        id="0" * 16,
        kind="plan",
        job=JOB,
        model_config_json=None,
        arguments=["--device=memory=24GiB,tflops=165,bandwidth=1000"],
        attempt=1,
        study=None,
    )
    return LengthsTask(lease, folder, {"knobs": KNOBS}, {}, memory_bytes)


def worked_off(task: LengthsTask) -> dict[str, bytes]:
    shelf, until = Shelf(), time.monotonic() + 600
    while not task.turn(cast(Door, shelf), "worker"):
        task.look()
        assert time.monotonic() < until
        time.sleep(0.1)
    return shelf.files


@pytest.mark.nightly("service")
def test_each_length_has_its_peaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan_cache: Path
) -> None:
    monkeypatch.setenv("AUTOTUNE_CACHE", str(plan_cache))
    monkeypatch.setattr(module, "SHARES", (1.0, 2.0))
    points = json.loads(worked_off(task_in(tmp_path))[module.FILE])["points"]
    assert {point["max_length"] for point in points} == {64, 128}
    assert {point["micro_batch"] for point in points} == {1, 2, 4}
    peaks = {(p["micro_batch"], p["max_length"]): p["peak_memory_bytes"] for p in points}
    assert all(peaks[size, 64] < peaks[size, 128] for size in (2, 4))


def test_a_plan_of_a_length_has_the_limits_of_plans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SHARES", (1.0,))
    assert worked_off(task_in(tmp_path, memory_bytes=2**20)) == {}


def test_a_work_that_is_deleted_is_left(tmp_path: Path) -> None:
    task = task_in(tmp_path / "work")
    for path in sorted((tmp_path / "work").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    (tmp_path / "work").rmdir()
    assert worked_off(task) == {}
