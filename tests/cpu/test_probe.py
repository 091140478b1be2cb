"""Probes of the real SFTTrainer on the CPU: what they measure, and how they fail."""

import importlib.util
import math
from pathlib import Path

import pytest

from autotune.facts.stack import absent
from autotune.process.child_server import ChildServer
from autotune.process.messages import ChildFolder
from autotune.process.progress import ProgressReader
from tests.cpu.conftest import LLAMA, MAMBA, Bench, open_bench

MIB = 2**20


def test_an_ok_probe_tells_times_that_add_up_and_a_peak(bench: Bench) -> None:
    m = bench.probe("ok", per_device_train_batch_size=2)
    assert m.outcome == "ok", m.reason
    assert m.micro_step_time_s and m.optimizer_step_time_s and m.tokens_per_s
    assert m.data_wait_s is not None and m.tokens_per_step is not None
    step = 4 * (m.micro_step_time_s + m.data_wait_s) + m.optimizer_step_time_s
    assert m.step_time_s == pytest.approx(step)
    assert m.tokens_per_s == pytest.approx(m.tokens_per_step / m.step_time_s)
    assert m.peak_memory_bytes and 200 * MIB < m.peak_memory_bytes < 4096 * MIB
    assert m.last_loss and 0 < m.last_loss < 1.2 * math.log(509)
    assert m.gradient_norm and math.isfinite(m.gradient_norm)
    assert m.micro_steps_measured >= 16
    assert m.padding_share and 0 < m.padding_share < 0.9
    steps = bench.steps("ok")
    assert steps.stage == "train" and steps.tokens_per_s == m.tokens_per_s
    assert m.micro_steps_measured < steps.micro_steps <= (steps.most_micro_steps or 0)
    assert steps.peak_memory_bytes == pytest.approx(m.peak_memory_bytes, rel=0.05)


def test_grouping_by_length_pads_less_and_padding_free_not_at_all(bench: Bench) -> None:
    shares = {
        name: bench.probe(name, per_device_train_batch_size=4, **knobs).padding_share
        for name, knobs in {
            "random": {},
            "grouped": {"train_sampling_strategy": "group_by_length"},
            "flat": {"padding_free": True},
        }.items()
    }
    assert shares["random"] > shares["grouped"] > shares["flat"] == 0


def test_a_real_allocation_failure_is_named_oom_and_the_next_probe_runs(
    server: ChildServer, tmp_path: Path
) -> None:
    # Logits of 128 MiB: the failure is decided by them, not by the heap's mood (peaks of one and
    # the same small probe were seen to differ by 15% between processes).
    model = {**LLAMA, "vocab_size": 65536}
    lengths = "dataset={lengths: {max: 64, p50: 64, rows: 64}}"
    bench = open_bench(tmp_path, server, model, [lengths, "global_batch_size=8"])
    roomy = bench.probe("roomy", loss_type="nll", per_device_train_batch_size=8)
    assert roomy.outcome == "ok", roomy.reason
    assert roomy.peak_memory_bytes is not None
    limit = roomy.peak_memory_bytes - 200 * MIB
    tight = bench.probe("tight", limit=limit, loss_type="nll", per_device_train_batch_size=8)
    assert tight.outcome == "oom", tight.reason
    assert not tight.inferred and tight.missing_bytes and tight.missing_bytes > 0
    assert tight.failure and tight.failure["stage"] == "train"
    assert bench.probe("after", per_device_train_batch_size=1).outcome == "ok"


def test_a_limit_below_the_start_ends_as_oom_within_its_time(bench: Bench) -> None:
    m = bench.probe("hopeless", limit=64 * MIB)
    assert m.outcome == "oom", m.reason
    assert m.seconds < 60


def test_a_loss_that_is_no_number_is_unstable(bench: Bench) -> None:
    job = bench.job.model_copy(update={"training": {"learning_rate": 1e30}})
    request = bench.request(job=job)
    folder = ChildFolder(path=bench.run.path / "probes" / "unstable")
    from autotune.probe.measure import measure
    from autotune.process.limits import Limits

    m = measure(bench.server, folder, request, Limits(wall_s=120, stall_s=15))
    assert m.outcome == "unstable", m.reason
    assert "loss" in m.reason or "gradient" in m.reason
    events = ProgressReader(folder.progress).new_events()
    losses = [event["loss"] for event in events if event["event"] == "micro_step"]
    assert losses and all(map(math.isfinite, losses)), "it explodes once it trains"


def test_what_the_stack_refuses_is_unsupported_with_its_reason(bench: Bench) -> None:
    m = bench.probe("flash", attn_implementation="flash_attention_2")
    assert m.outcome == "unsupported", m.reason
    assert m.failure and "lash" in m.failure["message"]
    assert ("no network?" in m.reason) == ("kernels" not in absent())


def test_a_model_whose_rows_leak_into_each_other_may_not_go_padding_free(
    server: ChildServer, tmp_path: Path
) -> None:
    lengths = "dataset={lengths: {max: 24, rows: 64}}"
    mamba = open_bench(tmp_path, server, MAMBA, [lengths, "global_batch_size=2"])
    plain = mamba.probe("padded", per_device_train_batch_size=2)
    assert plain.outcome == "ok", plain.reason
    flat = mamba.probe("flat", per_device_train_batch_size=2, padding_free=True)
    assert flat.outcome == "unsupported"
    assert "attend to each other" in flat.reason


def test_an_optimizer_runs_where_its_package_is_and_else_is_unsupported(bench: Bench) -> None:
    m = bench.probe("eight bits", optim="adamw_8bit")
    if importlib.util.find_spec("bitsandbytes") is None:
        assert (m.outcome, "bitsandbytes" in m.reason) == ("unsupported", True), m.reason
    else:
        assert m.outcome == "ok", m.reason
