"""Estimates of an engine from traces of few layers, held against traces with all of them.

A child does both, as a plan's does; the micro-batch lies between two that are traced.
"""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from autotune.process.child_server import ChildServer
from autotune.process.messages import ChildFolder, read_json, write_json
from autotune.space.sharding.sharding import Sharding
from tests.cpu.test_estimate_scaling import (
    CUDA,
    Case,
    checkpointing_of,
    estimate_request,
    write_rows,
)
from tests.cpu.test_sharded_estimates import BF16, deepspeed, replies_of

pytestmark = [pytest.mark.slow, pytest.mark.nightly("exactness")]

LAYERS = 19
WORKER = "tests.cpu.test_sharding_depths:compare"
SHARDINGS: dict[str, dict[str, Any]] = {
    "fsdp, every 4th layer": {"distributed_type": "FSDP", "num_processes": 8},
    "zero 3": {"distributed_type": "DEEPSPEED", "num_processes": 2, "zero_stage": 3},
}
SIZES = {
    "stage3_param_persistence_threshold": 100,
    "stage3_prefetch_bucket_size": 4000,
    "stage3_max_live_parameters": 250_000,
    "stage3_max_reuse_distance": 250_000,
    "sub_group_size": 250_000,
    "reduce_bucket_size": 4000,
}
"""Of stage 3, in weights: those of five layers at once, as of a large model."""

CLOSE = {"fsdp, every 4th layer": 0.03, "zero 3": 0.01}
"""Of phases. With one group of weights for any depth, stage 3's step would be 2.6% too high."""


def compare(path: Path) -> None:
    """The child: what a plan's child says of a point, and what it would say with all layers."""
    from autotune.estimate.variants.retracing import DIRECT
    from autotune.estimate.variants.sharded import ShardedEstimates

    folder = ChildFolder(path=path)
    asked: dict[str, Any] = read_json(folder.request) or {}
    sharding = Sharding(**asked["sharding"])
    config = BF16 if sharding.zero_stage else {**BF16, **checkpointing_of("every_4")}
    largest = Case(config=config, rows=5, cuda=CUDA)
    request = estimate_request(largest, asked["model"], write_rows(largest, path / "rows"))
    smallest = estimate_request(dataclasses.replace(largest, rows=2), asked["model"], request.rows)
    request = dataclasses.replace(
        request,
        layers=LAYERS,
        points=[*request.points, smallest.points[0]],
        sharding=sharding.plain(),
        deepspeed=deepspeed(sharding),
    )
    if sharding.zero_stage == 3:
        request.deepspeed["zero_optimization"] |= SIZES
    point = request.points[2]
    few = ShardedEstimates(request)
    found: dict[str, Any] = {"few": few.point(point).plain(), "few work": _work(few)}
    whole = ShardedEstimates(dataclasses.replace(request, points=[request.points[0], point]))
    whole.extent = DIRECT
    found |= {"whole": whole.point(point).plain(), "whole work": _work(whole)}
    found["largest"] = few.point(request.points[0]).plain()["peak_allocated_bytes"]
    write_json(folder.reply, found)


def _work(estimates: Any) -> list[list[int]]:
    """Operators, FLOPs and moved bytes of the largest micro-step, and of the optimizer step."""
    rows = [estimates.shapes()[-1].work, estimates.optimizer_work()[""]]
    return [
        [sum(row[-1] * (row[at] if at else 1) for row in one) for at in (None, 4, 5)]
        for one in rows
    ]


@pytest.fixture(scope="module")
def replies(server: ChildServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return replies_of(server, tmp_path_factory.mktemp("depths"), WORKER, SHARDINGS, LAYERS)


@pytest.mark.parametrize("name", SHARDINGS)
def test_few_layers_and_other_micro_batches_tell_the_peak_with_all(
    replies: dict[str, Any], name: str
) -> None:
    few, whole = replies[name]["few"], replies[name]["whole"]
    assert (few["method"], whole["method"]) == ("scaled trace", "trace")
    assert few["peak_allocated_bytes"] == pytest.approx(whole["peak_allocated_bytes"], rel=0.01)
    assert few["peak_allocated_bytes"] < replies[name]["largest"]
    assert sum(few["parts"].values()) == few["peak_allocated_bytes"]
    assert few["host_bytes"] == pytest.approx(whole["host_bytes"], rel=0.01, abs=1)
    assert few["phase"] == whole["phase"]
    assert few["phases"] == pytest.approx(whole["phases"], rel=CLOSE[name])


@pytest.mark.parametrize("name", SHARDINGS)
def test_the_work_is_that_of_all_layers(replies: dict[str, Any], name: str) -> None:
    for few, whole in zip(replies[name]["few work"], replies[name]["whole work"], strict=True):
        assert few == pytest.approx(whole, rel=0.04)
