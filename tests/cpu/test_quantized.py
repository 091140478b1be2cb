"""Adapters on bitsandbytes' quantised bases: probes of every method, estimates, a bundle.

What needs that package is skipped where it is not installed; the estimates do not need it.
"""

import importlib.util
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest

from autotune.process.child_server import ChildServer
from autotune.process.limits import Limits
from autotune.process.messages import ChildFolder, read_json, write_json
from benchmarks.estimate_exactness.cases import Case
from benchmarks.estimate_exactness.models import write_model
from benchmarks.estimate_exactness.run import compare
from benchmarks.rollout_exactness import cases as rollouts
from benchmarks.rollout_exactness.ppo_cases import PpoCase
from benchmarks.rollout_exactness.run import compare as compare_rollout
from benchmarks.rollout_exactness.run import write_models
from tests.cpu.conftest import LLAMA, Bench, Command, Sweep, open_bench
from tests.cpu.test_run import assert_launched, write_job
from tests.guards import some_of

INSTALLED = importlib.util.find_spec("bitsandbytes") is not None
needs_bitsandbytes = pytest.mark.skipif(not INSTALLED, reason="bitsandbytes is not installed")
NESTED = Case(model="llama", base="4-bit nested", method="lora-all-8", checkpointing="on")
CASES = (
    NESTED,
    Case(model="qwen2", base="4-bit", method="lora-all-16", training="dpo"),
    Case(model="gpt2", base="8-bit", method="lora-attention-4", bf16=True),
    Case(model="gemma", base="8-bit", method="lora-all-8", training="reward", dtype="bfloat16"),
)
ROLLOUTS = (
    rollouts.Case(lora=True, bits=4, beta=0.04),
    rollouts.Case(method="rloo", model="llama", lora=True, bits=8, bf16=True, checkpointing=True),
    PpoCase(model="llama", lora=True, bits=4, bf16=True, dtype="bfloat16", checkpointing=True),
    # Its update once was 1.7% too low: a product in place, of two types, casts both ways.
    PpoCase(model="qwen3", lora=True, bits=8, dtype="bfloat16", copy_reference=True),
)
METHODS = ("sft", "reward", "dpo", "kto", "grpo", "rloo")
WORKER = "tests.cpu.test_quantized:traced_without_the_package"


def opened(folder: Path, server: ChildServer, method: str) -> Bench:
    """A quantised job of a method, on lengths."""
    sets = ["dataset={lengths: {max: 60, p50: 30, rows: 200}}", f"method={method}", "tuning=qlora"]
    if method in ("grpo", "rloo"):
        pins = "{num_generations: 4, max_completion_length: 12, dtype: bfloat16}"
        sets += ["max_length=null", "reward_funcs=[get_soft_overlong_punishment]", f"fixed={pins}"]
    elif method == "reward":
        sets += ["fixed={dtype: bfloat16}"]
    return open_bench(folder, server, LLAMA, sets)


@pytest.mark.parametrize("method", METHODS)
@needs_bitsandbytes
def test_a_probe_trains_adapters_on_a_quantised_base(
    method: str, server: ChildServer, tmp_path: Path
) -> None:
    bench = opened(tmp_path, server, method)
    four = bench.probe("four bits")
    assert four.outcome == "ok", four.reason
    assert four.last_loss is not None
    eight = bench.probe("eight bits", load_in_8bit=True)
    assert eight.outcome == "ok", eight.reason


@needs_bitsandbytes
def test_rows_without_padding_are_looked_at_and_then_trained_on(
    server: ChildServer, tmp_path: Path
) -> None:
    flat = opened(tmp_path, server, "sft").probe("flat", padding_free=True)
    assert flat.outcome == "ok", flat.reason


@pytest.mark.skipif(INSTALLED, reason="bitsandbytes is installed")
def test_without_the_package_a_probe_says_what_is_missing(
    server: ChildServer, tmp_path: Path
) -> None:
    m = opened(tmp_path, server, "sft").probe("four bits")
    assert (m.outcome, "bitsandbytes" in m.reason) == ("unsupported", True), m.reason


@pytest.fixture(scope="module")
def rows(server: ChildServer, tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    folder = tmp_path_factory.mktemp("exactness")
    for name in {case.model for case in CASES}:
        write_model(name, folder / "models" / name)
    return Sweep(
        lambda case: compare(case, server, folder / "models", folder / str(CASES.index(case)))
    )


@pytest.mark.parametrize("case", some_of(CASES, {NESTED}, "exactness"), ids=lambda case: case.name)
@needs_bitsandbytes
def test_the_estimate_is_the_peak_of_the_real_steps(rows: Sweep, case: Case) -> None:
    assert "failure" not in rows[case], rows[case]["failure"]
    assert abs(rows[case]["error"]) < 0.005, rows[case]


@pytest.mark.nightly("exactness")
@needs_bitsandbytes
def test_half_of_the_estimates_are_off_by_less_than_one_in_a_thousand(rows: Sweep) -> None:
    errors = [abs(rows[case]["error"]) for case in CASES]
    assert statistics.median(errors) < 0.001, errors


@pytest.mark.parametrize("case", some_of(ROLLOUTS, (), "exactness"), ids=lambda case: case.name)
@needs_bitsandbytes
def test_the_estimate_of_an_online_trainer_is_its_peak(
    case: rollouts.Case | PpoCase, server: ChildServer, tmp_path: Path
) -> None:
    write_models(tmp_path / "models", {case.model})
    row = compare_rollout(case, server, tmp_path / "models", tmp_path / "row")
    assert "failure" not in row, row["failure"]
    # To decode few rows bitsandbytes may take kernels that unpack no weight (CPUs, docs/log.md).
    errors = dict(row["phases"])
    assert -0.002 < errors.pop("decode") < 0.01, row
    assert max(map(abs, errors.values())) < 0.002, row


def traced_without_the_package(path: Path) -> None:
    """A child that cannot import bitsandbytes: the peak of a trace."""
    from autotune.estimate.records import events
    from autotune.estimate.tracing.trace import trace_steps
    from benchmarks.estimate_exactness.worker import asked_of

    sys.modules["bitsandbytes"] = None  # type: ignore[assignment]
    folder = ChildFolder(path=path)
    reply = trace_steps(asked_of(folder))
    write_json(folder.reply, {"estimate_bytes": events.live_bytes(reply.events).peak_bytes})


def test_estimates_do_not_need_the_package(
    server: ChildServer, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    model = write_model(NESTED.model, tmp_path / "model")
    folder = ChildFolder(path=tmp_path / "trace")
    folder.path.mkdir()
    write_json(folder.request, NESTED.request(model).plain())
    server.run(folder, WORKER, Limits(wall_s=900, stall_s=900))
    found = read_json(folder.reply)
    assert found, folder.stderr.read_text(encoding="utf-8")
    if INSTALLED:
        known = request.getfixturevalue("rows")[NESTED]["estimate_bytes"]
        assert found["estimate_bytes"] == known


DIVIDED: dict[str, dict[str, Any]] = {
    "DDP": {"distributed_type": "MULTI_CPU"},
    "FSDP2": {"distributed_type": "FSDP"},
    "ZeRO-3": {"distributed_type": "DEEPSPEED", "zero_stage": 3},
}


@pytest.mark.nightly("ranks")
@pytest.mark.usefixtures("deepspeed_compiled")
@needs_bitsandbytes
def test_ranks_that_divide_a_quantised_base_learn_what_whole_copies_do(
    server: ChildServer, tmp_path: Path
) -> None:
    lengths = "dataset={lengths: {max: 32, p50: 16, p99: 30, rows: 200}}"
    sets = [lengths, "devices.kind=cpu", "devices.count=2", "global_batch_size=8", "max_length=32"]
    sets += ["tuning=qlora", "fixed={dtype: bfloat16}"]
    bench = open_bench(tmp_path, server, {**LLAMA, "hidden_size": 128}, sets)
    losses = {}
    for name, knobs in DIVIDED.items():
        found = bench.probe(name, per_device_train_batch_size=2, **knobs)
        assert (found.outcome, found.engine) == ("ok", name), found.reason
        losses[name] = found.last_loss
    assert losses["FSDP2"] == pytest.approx(losses["DDP"], rel=1e-3)
    assert losses["ZeRO-3"] == pytest.approx(losses["DDP"], rel=1e-3)


@pytest.mark.nightly("launches")
@pytest.mark.slow
@needs_bitsandbytes
def test_a_quantised_job_becomes_a_verified_bundle_that_trains(autotune: Command) -> None:
    """Dimensions that bitsandbytes can pack for inference: the launch evaluates too."""
    model = {**LLAMA, "hidden_size": 128, "intermediate_size": 256}
    (autotune.folder / "config.json").write_text(json.dumps(model), encoding="utf-8")
    pins = {"attn_implementation": "sdpa", "loss_type": "nll", "optim": "adamw_torch"}
    pins |= {"train_sampling_strategy": "random", "padding_free": False}
    job = {
        "model": "config.json",
        "dataset": {"lengths": {"max": 60, "p50": 30, "rows": 200}},
        "tuning": "qlora",
        "global_batch_size": 4,
        "max_length": 64,
        "fixed": {**pins, "gradient_checkpointing": True, "per_device_train_batch_size": 4},
    }
    (autotune.folder / "job.yaml").write_text(json.dumps(job), encoding="utf-8")
    result = json.loads(
        autotune("run", "job.yaml", "--out", "run", "--json", "--no-history", expect=None)
    )
    assert result["outcome"] == "recommended"
    assert_launched(result["verification"])


@pytest.mark.slow
@pytest.mark.nightly("ppo")
@needs_bitsandbytes
def test_a_quantised_policy_of_ppo_becomes_a_verified_bundle(autotune: Command) -> None:
    """In bf16, for which PPOTrainer by itself casts a 4-bit policy so that it cannot generate."""
    write_job(
        autotune.folder,
        method="ppo",
        tuning="qlora",
        precision="bf16",
        max_length=None,
        dataset={"lengths": {"max": 30, "p50": 12, "rows": 200}},
        budget={"probes": 1, "minutes": 5},
        fixed={"attn_implementation": "sdpa", "optim": "adamw_torch_fused", "response_length": 8}
        | {"num_ppo_epochs": 1, "per_device_train_batch_size": 4, "gradient_checkpointing": True}
        | {"local_rollout_forward_batch_size": 8},
    )
    result = json.loads(
        autotune("run", "job.yaml", "--out", "run", "--json", "--no-history", expect=None)
    )
    assert result["outcome"] == "recommended"
    launched = result["verification"]
    assert launched["saved"] and (
        launched["verified"] or (launched["only_too_slow"] or launched["only_too_fast"])
    ), launched
    settings = (autotune.folder / "run" / "bundle" / "ppo_config.yaml").read_text(encoding="utf-8")
    assert "load_in_4bit: true" in settings
