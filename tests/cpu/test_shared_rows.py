"""Rows whose tokens processes share: Ulysses' way trains on CPU ranks, and learns the same. Context
parallelism does not run there: torch 2.13 has no sharding of its attention for CPUs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from autotune.process.child_server import ChildServer
from tests.cpu.conftest import LLAMA, open_bench
from tests.cpu.stand_ins import give_tokenizer
from tests.cpu.test_ranks import probe

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("deepspeed_compiled")]
SHARED = {"distributed_type": "DEEPSPEED", "sp_size": 2}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a small model."""
    folder = tmp_path_factory.mktemp("shared") / "model"
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 8192}
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**sizes, **heads)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    give_tokenizer(folder)
    return folder


def trained(model: Path, **sharding: Any) -> dict[str, Any]:
    """What three steps tell."""
    ranks = ["-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone"]
    fields = json.dumps({"num_processes": 2, **sharding}) if sharding else ""
    child = [str(Path(__file__).with_name("shared_rows.py")), str(model), str(model / "out")]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, *(ranks if sharding else []), *child, fields]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    replies = [line for line in ended.stdout.splitlines() if line.startswith("REPLY")]
    assert replies, ended.stderr[-3000:]
    reply: dict[str, Any] = json.loads(replies[0].removeprefix("REPLY"))
    return reply


@pytest.mark.nightly("ranks")
def test_two_ranks_that_share_rows_learn_as_one_process(model: Path) -> None:
    alone, shared = trained(model), trained(model, **SHARED, zero_stage=3)
    assert shared["loss"] == pytest.approx(alone["loss"], rel=1e-5)
    assert shared["grad_norm"] == pytest.approx(alone["grad_norm"], rel=1e-3)
    assert alone["lengths"] == [64] * 6 and shared["lengths"] == [32] * 6


@pytest.mark.nightly("ranks")
def test_under_zero_2_gradients_are_twice_as_large(model: Path) -> None:
    """Why `search_spaces/sharding.yaml` forbids it: once they are right, the rule can go."""
    alone, shared = trained(model), trained(model, **SHARED, zero_stage=2)
    assert shared["grad_norm"][0] == pytest.approx(2 * alone["grad_norm"][0], rel=1e-3)


@pytest.mark.nightly("ranks")
def test_context_parallelism_does_not_run_on_cpus(model: Path) -> None:
    with pytest.raises(AssertionError, match="flash_attention_for_cpu.default does not have"):
        trained(model, distributed_type="FSDP", cp_size=2)


def test_a_probe_of_shared_rows_trains(server: ChildServer, tmp_path: Path) -> None:
    """Of rows of one length: gloo gathers no others."""
    lengths = "dataset={lengths: {max: 32, rows: 64}}"
    sets = [lengths, "devices.kind=cpu", "devices.count=2", "max_length=32", "weights=random"]
    bench = open_bench(tmp_path, server, LLAMA, sets)
    measured = probe(bench, "shared rows", **SHARED, zero_stage=3)
    assert measured.outcome == "ok", (measured.reason, measured.failure)
    assert measured.engine == "ZeRO-3, sp_size 2"
