"""The finer settings of ZeRO in two real ranks: what DeepSpeed's optimizer really has."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.probe import measure as measuring
from autotune.probe.measure import measure
from autotune.probe.protocol import Measurement
from autotune.process.child_server import ChildServer
from autotune.process.limits import Limits
from tests.cpu.conftest import LLAMA, Bench, open_bench
from tests.cpu.workers import ENGINE_SETTINGS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("deepspeed_compiled"),
    pytest.mark.nightly("ranks"),
]

HIDDEN = 128
MODEL = {**LLAMA, "hidden_size": HIDDEN, "intermediate_size": 320}
TWO = {"distributed_type": "DEEPSPEED", "zero_stage": 2}
THREE = {"distributed_type": "DEEPSPEED", "zero_stage": 3}


@pytest.fixture(scope="module")
def bench(server: ChildServer, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    lengths = "dataset={lengths: {max: 32, p50: 16, p99: 30, rows: 200}}"
    sets = [lengths, "devices.kind=cpu", "devices.count=2", "global_batch_size=8", "max_length=32"]
    folder = tmp_path_factory.mktemp("settings")
    return open_bench(folder, server, MODEL, [*sets, "weights=random"])


def probe(bench: Bench, name: str, **knobs: Any) -> tuple[Measurement, list[dict[str, Any]]]:
    """The measurement, and what each rank told of its engine."""
    folder = replace(bench.run.probe(0), path=bench.run.path / "probes" / name)
    request = bench.request(per_device_train_batch_size=2, **knobs)
    found = measure(bench.server, folder, request, Limits(wall_s=600, stall_s=60))
    files = sorted(Path(folder.path).glob(f"*-{ENGINE_SETTINGS}"))
    return found, [json.loads(file.read_text(encoding="utf-8")) for file in files]


def test_buckets_are_what_the_candidate_says(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "WORKER", "tests.cpu.workers:zero_as_it_is")
    one, ranks = probe(bench, "small", **TWO, reduce_bucket_size=5000, overlap_comm=False)
    assert one.outcome == "ok", (one.reason, one.failure)
    assert one.engine == "ZeRO-2" and len(ranks) == 2
    for rank in ranks:
        assert (rank["overlap_comm"], rank["reduce_bucket_size"]) == (False, 5000)
        assert rank["buffers"] == [5000]  # it would be two, of HIDDEN**2


def test_what_stage_3_leaves_whole_and_gathers_ahead_is_what_the_candidate_says(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "WORKER", "tests.cpu.workers:zero_as_it_is")
    sizes = {"stage3_prefetch_bucket_size": 777, "stage3_param_persistence_threshold": HIDDEN**2}
    sizes |= {"reduce_bucket_size": 3000}
    one, ranks = probe(bench, "three", **THREE, **sizes)
    assert one.outcome == "ok", (one.reason, one.failure)
    assert len(ranks) == 2
    for rank in ranks:
        assert (rank["prefetched"], rank["buffers"]) == (777, [3000])
        assert max(rank["whole"]) == HIDDEN**2  # a projection; it would be norms alone


def test_an_engine_that_was_told_otherwise_is_unsupported(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "WORKER", "tests.cpu.workers:zero_told_otherwise")
    one, _ = probe(bench, "tampered", **TWO)
    assert (one.outcome, one.failed_rank) == ("unsupported", 1)
    assert f"with reduce_bucket_size: 7 (asked: {HIDDEN**2})" in one.reason
