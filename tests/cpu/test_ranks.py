"""Two real ranks in a probe: every way to spread a training, and each way in which one can fail."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from autotune.probe import measure as measuring
from autotune.probe.measure import measure
from autotune.probe.protocol import Measurement
from autotune.process.child_server import ChildServer
from autotune.process.limits import Limits
from tests.cpu.conftest import LLAMA, Bench, Command, Sweep, open_bench
from tests.cpu.stand_ins import give_tokenizer
from tests.cpu.test_run import assert_launched, probes_of, write_job
from tests.cpu.workers import RANK_FAULTS
from tests.guards import some_of

pytestmark = pytest.mark.usefixtures("deepspeed_compiled")
LONG = pytest.mark.nightly("ranks")

MODEL = {**LLAMA, "hidden_size": 128, "intermediate_size": 320}
STRATEGIES: dict[str, dict[str, Any]] = {
    "DDP": {"distributed_type": "MULTI_CPU"},
    "ZeRO-1": {"distributed_type": "DEEPSPEED", "zero_stage": 1},
    "ZeRO-2, optimizer on cpu": {
        "distributed_type": "DEEPSPEED",
        "zero_stage": 2,
        "offload_optimizer_device": "cpu",
    },
    "ZeRO-3, optimizer on cpu, weights on cpu": {
        "distributed_type": "DEEPSPEED",
        "zero_stage": 3,
        "offload_optimizer_device": "cpu",
        "offload_param_device": "cpu",
    },
    "FSDP2, not resharded": {"distributed_type": "FSDP", "fsdp_reshard_after_forward": False},
}
"""ZeRO-2, ZeRO-3 and FSDP2 by themselves are launched as bundles: `test_launch_several.py`."""


@pytest.fixture(scope="module")
def two(server: ChildServer, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """A job of two processes on the CPU."""
    lengths = "dataset={lengths: {max: 32, p50: 16, p99: 30, rows: 200}}"
    sets = [lengths, "devices.kind=cpu", "devices.count=2", "global_batch_size=8", "max_length=32"]
    folder = tmp_path_factory.mktemp("two ranks")
    bench = open_bench(folder, server, MODEL, [*sets, "weights=random"])
    # ZeRO-3 draws its random weights in another order: all begin with the same real ones.
    model = Path(bench.facts.model.path)
    torch.manual_seed(0)
    config = transformers.AutoConfig.from_pretrained(model)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(model)
    facts = replace(bench.facts, model=replace(bench.facts.model, weights="real"))
    return replace(bench, facts=facts)


def probe(bench: Bench, name: str, limit: int | None = None, **knobs: Any) -> Measurement:
    folder = replace(bench.run.probe(0), path=bench.run.path / "probes" / name)
    chosen = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, **knobs}
    request = bench.request(limit, **chosen)
    return measure(bench.server, folder, request, Limits(wall_s=600, stall_s=15))


@pytest.fixture(scope="module")
def measured(two: Bench) -> Sweep:
    return Sweep(lambda name: probe(two, name, **STRATEGIES[name]))


OFTEN = ("DDP", "ZeRO-2, optimizer on cpu")


@pytest.mark.parametrize("name", some_of(STRATEGIES, OFTEN, "ranks"))
def test_what_was_asked_for_ran(measured: Sweep, name: str) -> None:
    one = measured[name]
    assert one.outcome == "ok", (one.reason, one.failure)
    assert one.engine == name
    assert [rank["rank"] for rank in one.ranks] == [0, 1]
    peaks = [rank["peak_memory_bytes"] for rank in one.ranks]
    assert one.peak_memory_bytes == max(peaks) and min(peaks) > 2**28
    speeds = [rank["tokens_per_s"] for rank in one.ranks]
    assert one.tokens_per_s == min(speeds)


@pytest.mark.parametrize("name", some_of(STRATEGIES, OFTEN, "ranks"))
def test_all_of_them_compute_the_same(two: Bench, measured: Sweep, name: str) -> None:
    losses = {}
    for one in ("DDP", name):
        assert measured[one].outcome == "ok"
        losses[one] = _losses(two.run.path / "probes" / one)[:12]
    assert len(losses["DDP"]) == 12
    assert losses[name] == pytest.approx(losses["DDP"], rel=1e-4)


def test_one_process_offloads_in_a_group_of_one_and_computes_the_same(
    two: Bench, measured: Sweep
) -> None:
    name = "ZeRO-2, optimizer on cpu"
    one = probe(two, "alone", num_processes=1, **STRATEGIES[name])
    assert one.outcome == "ok", (one.reason, one.failure)
    assert (one.engine, one.ranks) == (name, []), "it is the probe's own process"
    assert one.peak_memory_bytes is not None and one.peak_memory_bytes > 2**28
    found, known = (_losses(two.run.path / "probes" / folder)[:12] for folder in ("alone", "DDP"))
    assert found == pytest.approx(known, rel=1e-4)
    assert measured["DDP"].tokens_per_step == 2 * (one.tokens_per_step or 0)


@pytest.mark.parametrize("fault", RANK_FAULTS)
def test_a_rank_that_fails_ends_the_probe_by_its_name(
    two: Bench, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank, outcome, said = RANK_FAULTS[fault]
    monkeypatch.setattr(measuring, "WORKER", f"tests.cpu.workers:{fault}")
    one = probe(two, fault, distributed_type="MULTI_CPU", limit=3 * 2**30)
    assert one.outcome == outcome, (one.reason, one.failure)
    assert one.failed_rank == rank
    assert one.reason.startswith(f"rank {rank} of 2: ") and said in one.reason
    assert not _still_running(Path(two.run.path))


def test_the_host_memory_of_all_ranks_is_told(two: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside what each rank takes: loading apart, and no more than the ranks have together. The
    port in the surroundings is taken, which is nothing to ranks that bring their own."""
    monkeypatch.setattr(measuring, "WORKER", "tests.cpu.workers:with_a_taken_port")
    one = probe(two, "told", distributed_type="MULTI_CPU")
    assert one.outcome == "ok", (one.reason, one.failure)
    together = sum(rank["peak_memory_bytes"] for rank in one.ranks)
    assert one.host_limit_bytes is None
    assert 2**28 < (one.host_loading_peak_bytes or 0) <= (one.host_peak_bytes or 0)
    assert 0.5 * together < (one.host_peak_bytes or 0) <= together


def test_ranks_that_take_more_of_the_host_than_they_may_are_ended_by_that_name(
    two: Bench,
) -> None:
    """A limit as the job has it, below what two processes with the stack take."""
    limit = 2**29
    devices = two.job.devices.model_copy(update={"host_memory": limit})
    job = two.job.model_copy(update={"devices": devices})
    one = probe(replace(two, job=job), "host", **STRATEGIES["ZeRO-2, optimizer on cpu"])
    assert one.outcome == "host_oom", (one.reason, one.failure)
    assert one.host_limit_bytes == limit
    assert one.missing_bytes == (one.host_peak_bytes or 0) - limit > 0
    assert one.reason.startswith("2 processes took ") and "while loading" in one.reason
    assert not _still_running(Path(two.run.path))


def _losses(folder: Path) -> list[float]:
    """Of rank 0, micro-step by micro-step: two optimizer steps and more."""
    lines = (folder / "progress.jsonl").read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    return [event["loss"] for event in events if event["event"] == "micro_step"]


def _still_running(folder: Path) -> list[str]:
    """Command lines of processes whose files are in `folder`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                logs = [str(one.readlink()) for one in (entry / "fd").iterdir()]
            except OSError:
                continue
            if any(str(folder / "probes") in log for log in logs):
                found.append((entry / "cmdline").read_text(errors="replace"))
    return found


OTHERS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "dpo": ([], {"distributed_type": "DEEPSPEED", "zero_stage": 2}),
    "grpo": (
        [
            "reward_funcs=[get_soft_overlong_punishment]",
            "num_generations=4",
            "max_completion_length=12",
            "beta=0.04",
            "max_length=null",
        ],
        # vLLM has a device of its own: its place is taken by generation on the ranks.
        {
            "distributed_type": "DEEPSPEED",
            "zero_stage": 3,
            "generation_batch_size": 16,
            "use_vllm": True,
            "vllm_mode": "server",
        },
    ),
}


@pytest.mark.nightly("ppo")
def test_of_ppo_each_rank_has_whole_copies(server: ChildServer, tmp_path: Path) -> None:
    lengths = "dataset={lengths: {max: 30, p50: 10, p99: 25, rows: 60}}"
    sets = ["method=ppo", lengths, "devices.kind=cpu", "devices.count=2", "global_batch_size=16"]
    sets += ["response_length=12", "max_length=null", "num_ppo_epochs=1"]
    one = probe(open_bench(tmp_path / "bench", server, LLAMA, sets), "ppo")
    assert one.outcome == "ok", (one.reason, one.failure)
    assert one.engine == "DDP" and len(one.ranks) == 2
    assert one.completions_per_s == pytest.approx(16 / (one.step_time_s or 0))


@pytest.mark.nightly("ranks")
@pytest.mark.parametrize("method", OTHERS)
def test_other_trainers_are_divided_too(server: ChildServer, tmp_path: Path, method: str) -> None:
    """A reference beside the policy; generation from weights that no rank has whole."""
    sets, knobs = OTHERS[method]
    lengths = "dataset={lengths: {max: 30, p50: 10, p99: 25, rows: 60}}"
    common = [f"method={method}", lengths, "devices.kind=cpu", "devices.count=2"]
    common.append("global_batch_size=16")
    bench = open_bench(tmp_path / "bench", server, LLAMA, [*common, *sets])
    one = probe(bench, method, gradient_accumulation_steps=4, **knobs)
    assert one.outcome == "ok", (one.reason, one.failure)
    assert one.engine == f"ZeRO-{knobs['zero_stage']}" and len(one.ranks) == 2
    assert one.tokens_per_step is not None
    if method == "grpo":  # sixteen completions of twelve tokens, and their prompts
        assert 16 * (12 + 1) <= one.tokens_per_step <= 16 * (12 + 30)
        assert one.completions_per_s == pytest.approx(16 / (one.step_time_s or 0))
    else:
        assert one.tokens_per_step > 16


@LONG
@pytest.mark.parametrize(
    ("count", "kept", "engine"), [(2, "none", "ZeRO-2"), (1, "cpu", "ZeRO-2, optimizer on cpu")]
)
def test_a_job_that_deepspeed_trains_becomes_a_verified_bundle(
    autotune: Command, count: int, kept: str, engine: str
) -> None:
    """Found by probes of two ranks, or of one that offloads, verified by a launch of as many
    processes, and launched again."""
    pins = {"attn_implementation": "sdpa", "optim": "adamw_torch_fused", "loss_type": "nll"}
    pins |= {"gradient_checkpointing": False, "train_sampling_strategy": "random"}
    pins |= {"padding_free": False, "distributed_type": "DEEPSPEED", "zero_stage": 2}
    pins |= {"offload_optimizer_device": kept, "per_device_train_batch_size": 4 // count}
    write_job(autotune.folder, devices={"kind": "cpu", "count": count}, fixed=pins)
    model = autotune.folder / "model"
    (model / "config.json").write_text(json.dumps({**LLAMA, "vocab_size": 8192}))
    give_tokenizer(model)
    result = json.loads(autotune("run", "job.yaml", "--out", "run", "--json", expect=None))
    assert result["outcome"] == "recommended", result
    assert_launched(result["verification"])
    measured = probes_of(autotune, "run")[0]
    assert (measured["engine"], len(measured["ranks"])) == (engine, count if count > 1 else 0)
    assert measured["knobs"]["gradient_accumulation_steps"] == 2  # of 8 rows, 4 on all together
    assert "agree" in autotune("check", "run/bundle")
    launch = autotune.folder / "run" / "bundle" / "launch.sh"
    text = autotune.folder / "text.jsonl"
    text.write_text('{"text": "a b c d e"}\n' * 40, encoding="utf-8")
    words = ["--dataset_name", str(text), "--max_steps", "2", "--save_strategy", "no"]
    done = subprocess.run(["bash", str(launch), *words], capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]


def test_fsdp_on_the_cpu_is_refused_with_the_reason(autotune: Command) -> None:
    pins = {"distributed_type": "FSDP"}
    write_job(autotune.folder, devices={"kind": "cpu", "count": 2}, fixed=pins)
    said = autotune.refused("validate", "--space", "job.yaml")
    assert "each process trains a whole model by itself" in said
