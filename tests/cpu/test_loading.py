"""What ranks have in memory while a model is built: under FSDP the first loads it, for all; under
ZeRO-3 none but the first, which maps the file, ever has more than its part and a layer.

What was freed is given back to the system at once here (glibc would keep blocks of up to 32 MiB,
half as much again as ZeRO-3 needs), so that resident sizes tell what is held.
"""

import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers

from autotune.probe import measure as measuring
from autotune.probe.measure import measure
from autotune.process.child_server import ChildServer
from autotune.process.limits import Limits
from autotune.process.messages import read_json
from tests.cpu.conftest import LLAMA, Bench, open_bench

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("deepspeed_compiled"),
    pytest.mark.nightly("ranks"),
]

MODEL = {**LLAMA, "hidden_size": 1024, "intermediate_size": 2752, "num_hidden_layers": 6}
STRATEGIES: dict[str, dict[str, Any]] = {
    "DDP": {"distributed_type": "MULTI_CPU"},
    "FSDP2": {"distributed_type": "FSDP"},
    "ZeRO-2": {"distributed_type": "DEEPSPEED", "zero_stage": 2},
    "ZeRO-3": {"distributed_type": "DEEPSPEED", "zero_stage": 3},
}
RANDOM, REAL = "random", "real"
Grown = Callable[[str, str], list[dict[str, float]]]


@pytest.fixture(scope="module")
def frugal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChildServer]:
    """A server whose children give back what they free."""
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    environment = {"PYTHONPATH": path, "MALLOC_MMAP_THRESHOLD_": "65536"}
    log = tmp_path_factory.mktemp("frugal") / "server.log"
    with ChildServer(log, environment=environment) as running:
        yield running


@pytest.fixture(scope="module")
def bench(frugal: ChildServer, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """A job of two processes whose model has weights."""
    lengths = "dataset={lengths: {max: 16, rows: 64}}"
    sets = [lengths, "devices.kind=cpu", "devices.count=2", "global_batch_size=4", "max_length=16"]
    made = open_bench(tmp_path_factory.mktemp("loading"), frugal, MODEL, sets)
    config = transformers.AutoConfig.from_pretrained(made.facts.model.path)
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.save_pretrained(made.facts.model.path)
    return made


@pytest.fixture(scope="module")
def grown(bench: Bench) -> Grown:
    """By how much each rank grows, over the bytes of the whole model, each case tried once."""

    @functools.cache
    def measured(strategy: str, weights: str) -> list[dict[str, float]]:
        facts = replace(bench.facts, model=replace(bench.facts.model, weights=weights))
        folder = bench.run.path / "probes" / f"{weights} {strategy}"
        request = replace(bench, facts=facts).request(
            per_device_train_batch_size=2, **STRATEGIES[strategy]
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(measuring, "WORKER", "tests.cpu.workers:notes_growth")
            limits = Limits(wall_s=600, stall_s=120)
            ended = measure(bench.server, replace(bench.run.probe(0), path=folder), request, limits)
        assert "Stepped" in str(ended.failure), (ended.reason, ended.failure)
        whole = 4 * bench.facts.model.parameters
        replies = [read_json(folder / f"growth-{rank}.json") or {} for rank in (0, 1)]
        return [{when: grown / whole for when, grown in one.items()} for one in replies]

    return measured


@pytest.mark.parametrize("weights", [RANDOM, REAL])
def test_under_fsdp_the_first_rank_loads_for_all(grown: Grown, weights: str) -> None:
    """Models of random weights are made as real ones are loaded."""
    first, second = (one["engine"] for one in grown("FSDP2", weights))
    assert second < 1.0 < 1.4 < first


@pytest.mark.parametrize("weights", [RANDOM, REAL])
def test_under_zero_3_no_rank_makes_the_whole_model(grown: Grown, weights: str) -> None:
    """Half of it, and a layer at a time; the first rank maps the file that it reads."""
    first, second = (one["model"] for one in grown("ZeRO-3", weights))
    assert 0.5 < second < 0.8
    assert first < (0.8 if weights == RANDOM else 1.8)


def test_ranks_take_less_the_more_is_divided(grown: Grown) -> None:
    """After an optimizer step, in models of float32: weights, gradients, their buckets and two
    moments; stage 2 divides the latter three, stage 3 and FSDP2 all."""
    peak = {name: max(one["step"] for one in grown(name, RANDOM)) for name in STRATEGIES}
    print(peak)
    assert 5.0 < peak["DDP"] < 5.6
    assert 3.0 < peak["ZeRO-2"] < 4.2
    assert 2.5 < peak["ZeRO-3"] < 3.6
    assert 2.0 < peak["FSDP2"] < 2.6
