"""A vLLM server that takes some of a job's GPUs: which splits there are, and what fits."""

from collections import Counter
from dataclasses import replace

import pytest

from autotune.errors import UserError
from autotune.estimate.estimate import Estimate
from autotune.estimate.residual import Residual
from autotune.plain_data import from_plain
from autotune.plan.exchange import with_server
from autotune.probe.survey import refuse_untried
from autotune.report.words import describe
from autotune.run.expectations import Expectations
from autotune.space.bind import bind
from autotune.space.definition import load_definition
from autotune.space.job_shape import JobShape
from autotune.space.trl_config import settings
from autotune.space.vllm.server import server_needs, size_problem, sizes
from tests.unit.builders import GIB, make_estimate, make_facts, make_job
from tests.unit.loading import problems

GRPO = "method: grpo\nreward_funcs: [get_soft_overlong_punishment]\nglobal_batch_size: 64\n"
EIGHT = "devices: {kind: cuda, count: 8}\n"
PINNED = {
    "use_vllm": True,
    "vllm_mode": "server",
    "optim": "adamw_torch_fused",
    "attn_implementation": "sdpa",
    "gradient_checkpointing": True,
    "expandable_segments": False,
    "max_completion_length": 1024,
    "per_device_train_batch_size": 1,
    "generation_batch_size": 64,
}
KEPT = {"offload_optimizer_device": "none", "offload_param_device": "none"}
QWEN_7B = {"parameters": 7_615_616_512, "hidden_size": 3584, "cache_bytes_per_token": 57344}
QWEN_7B |= {"attention_heads": 28, "key_value_heads": 4, "max_positions": 32768}


def grpo(count=8, batch=64, devices=None, **fixed):
    return make_job(
        method="grpo",
        max_length=None,
        tuning="lora",
        global_batch_size=batch,
        reward_funcs=["get_soft_overlong_punishment"],
        devices={"kind": "cuda", "count": count, **(devices or {})},
        fixed={**PINNED, **fixed},
    )


def facts(gib=80, **model):
    facts_of_model = make_facts("cuda", longest=1024)
    device = replace(facts_of_model.device, total_bytes=gib * GIB, free_bytes=gib * GIB)
    return replace(
        facts_of_model, model=replace(facts_of_model.model, **{**QWEN_7B, **model}), device=device
    )


def space_of(job, facts_of_model=None):
    return bind(load_definition("grpo"), job, facts_of_model or facts())


def splits(space):
    return Counter((c["num_processes"], c["vllm_tensor_parallel_size"]) for c in space.candidates)


def test_every_split_that_keeps_the_batch_exact_is_a_candidate():
    space = space_of(grpo(zero_stage=3))
    zero3_space = space_of(grpo(zero_stage=3, **KEPT))
    # A process by itself has something of ZeRO only where it offloads.
    assert splits(space).keys() == {(p, t) for p in (4, 2, 1) for t in (4, 2, 1)}
    assert splits(zero3_space).keys() == {(p, t) for p in (4, 2) for t in (4, 2, 1)}
    space_of_ddp = space_of(grpo(distributed_type="NO"))
    assert splits(space_of_ddp).keys() == {(1, 4), (1, 2), (1, 1)}
    six = space_of(grpo(batch=48, generation_batch_size=48, zero_stage=3))
    assert {(6, 2), (6, 1), (3, 4)} <= splits(six).keys()
    for processes, size in [*splits(space), *splits(six)]:
        assert processes + size <= 8
    (note,) = space.notes
    assert (
        "8 processes would leave the server none; 7, 6, 5, 3 cannot share the global batch" in note
    )


def test_all_global_batches_are_shared_equally():
    job = grpo().model_copy(update={"recipe": {"global_batch_size": [64, 48]}})
    assert JobShape.of(job).process_counts == (4, 2, 1)
    assert JobShape.of(grpo(count=1)).process_counts == (1,)
    assert JobShape.of(grpo(vllm_mode="colocate")).process_counts == (8,)


@pytest.mark.parametrize(
    ("heads", "groups", "sizes_of_model"),
    [(28, 4, [4, 2, 1]), (32, 8, [16, 8, 4, 2, 1]), (64, 1, [16, 8, 4, 2, 1]), (12, 12, [4, 2, 1])],
)
def test_a_model_is_divided_as_vllm_divides_it(heads, groups, sizes_of_model):
    model = replace(facts().model, attention_heads=heads, key_value_heads=groups)
    assert sizes(model, 31) == sizes_of_model


def test_why_vllm_cannot_divide_a_model():
    model = facts().model
    assert "28 attention heads among 8" in size_problem(model, 8)
    assert "4 key-value heads among 7" in size_problem(model, 7)
    assert "does not say" in size_problem(replace(model, attention_heads=None), 2)
    assert "28 attention heads among 8" in space_of(grpo(16, zero_stage=3)).notes[0]
    with pytest.raises(UserError, match="cannot divide 28 attention heads among 3 GPUs"):
        space_of(grpo(vllm_tensor_parallel_size=3))


def test_each_gpu_of_a_server_holds_its_part():
    """15.2 GB of weights, 64 x 2048 tokens of 57 kB each: halved, halved again."""
    values = {**PINNED, "vllm_tensor_parallel_size": 1}
    job = grpo()
    needs, two, four, eight = (
        server_needs(job, facts(), {**values, "vllm_tensor_parallel_size": n}) for n in (1, 2, 4, 8)
    )
    assert needs.weights_bytes == 2 * QWEN_7B["parameters"]
    assert needs.cache_bytes == 64 * 2048 * 57344
    assert (two.weights_bytes, two.cache_bytes) == (
        needs.weights_bytes // 2,
        needs.cache_bytes // 2,
    )
    # There are four key-value heads: more GPUs hold copies of them.
    assert four.cache_bytes == eight.cache_bytes == needs.cache_bytes // 4
    assert needs.given_bytes == round(0.9 * 80 * GIB) and needs.missing_bytes is None
    small = server_needs(job, facts(gib=24), values)
    assert small.missing_bytes == small.needed_bytes - round(0.9 * 24 * GIB) > 0
    needs_without_cache = server_needs(job, facts(cache_bytes_per_token=None), values)
    assert (
        needs_without_cache.cache_bytes is None
        and needs_without_cache.needed_bytes < needs.needed_bytes
    )


def test_a_server_takes_no_more_than_the_job_may():
    half = grpo(devices={"memory": 40 * GIB})
    (share,) = {c["vllm_gpu_memory_utilization"] for c in space_of(half).candidates}
    assert share == 0.45
    pinned = space_of(grpo(vllm_gpu_memory_utilization=0.7)).default()
    assert server_needs(grpo(), facts(), pinned.values).given_bytes == round(0.7 * 80 * GIB)


def test_the_trainer_is_not_told_what_the_server_is():
    job = grpo(zero_stage=3)
    config = settings(job, facts(), space_of(job).default(), "out").config
    assert config["vllm_mode"] == "server"
    assert {"vllm_tensor_parallel_size", "vllm_gpu_memory_utilization"} & config.keys() == set()


def test_colocated_processes_share_a_model_by_request():
    job = grpo(vllm_mode="colocate", zero_stage=3)
    default = space_of(job).default()
    colocated_job = grpo(vllm_mode="colocate", zero_stage=3, vllm_tensor_parallel_size=4)
    parts = space_of(colocated_job).default()
    assert (default["vllm_tensor_parallel_size"], parts["vllm_tensor_parallel_size"]) == (1, 4)
    difference = default["vllm_gpu_memory_utilization"] - parts["vllm_gpu_memory_utilization"]
    assert difference * 80 * GIB == pytest.approx(0.75 * 2 * QWEN_7B["parameters"], abs=2e9)
    config = settings(colocated_job, facts(), parts, "out").config
    assert config["vllm_tensor_parallel_size"] == 4
    with pytest.raises(UserError, match="8 processes cannot be split into vLLM's groups of 3"):
        space_of(grpo(vllm_mode="colocate", vllm_tensor_parallel_size=3))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (
            f"{EIGHT}fixed: {{use_vllm: true, vllm_mode: server, num_processes: 8}}\n",
            "8 processes on 8 devices leave none for the vLLM server",
        ),
        (
            f"{EIGHT}fixed: {{use_vllm: true, vllm_mode: server, num_processes: 6}}\n",
            "64 rows cannot be divided among 6 devices",
        ),
        (
            "fixed: {use_vllm: true, vllm_tensor_parallel_size: 2}\n",
            "needs more devices",
        ),
        (
            f"{EIGHT}fixed: {{use_vllm: true, vllm_tensor_parallel_size: 0}}\n",
            "whole number above 0",
        ),
    ],
)
def test_a_split_that_cannot_be_is_refused(folder, text, what):
    reported = problems(folder, GRPO + text)
    assert len(reported) == 1 and what in reported[0][1]


def planned_candidates(job, facts_of_model, limit_missing=()):
    """Candidates with estimates: training is short on those of so many processes."""
    pairs = []
    for candidate in space_of(job, facts_of_model).candidates:
        shortfall = 3 * GIB if candidate["num_processes"] in limit_missing else None
        estimate = replace(make_estimate(20 * GIB), fits=shortfall is None, missing_bytes=shortfall)
        pairs.append((candidate, with_server(estimate, settings(job, facts_of_model, candidate))))
    return pairs


def test_a_candidate_fits_where_training_and_server_do():
    job, facts_of_model = grpo(zero_stage=3, **KEPT), facts(gib=24)
    pairs = planned_candidates(job, facts_of_model, limit_missing=(2,))
    fitting = {(c["num_processes"], e.server.devices) for c, e in pairs if e.fits}
    assert fitting == {(4, 4), (4, 2)}
    (estimate,) = [e for c, e in pairs if (c["num_processes"], e.server.devices) == (4, 1)][:1]
    assert estimate.missing_bytes is None and not estimate.fits
    assert from_plain(Estimate, estimate.plain() | {"fits": estimate.fits}) == estimate
    # No probe is worth it.
    key = pairs[0][0].key
    expected = Expectations(estimates={key: estimate}, prior=Residual(), limit_bytes=80 * GIB)
    assert expected.probability_of_oom(pairs[0][0], Residual()) == 1.0


def test_a_run_probes_splits_however_many_gpus_train():
    refuse_untried(grpo(count=2))
    refuse_untried(grpo(num_processes=1))
    refuse_untried(grpo())


def test_a_split_is_told_in_a_few_words():
    job = grpo(zero_stage=3)
    space = space_of(job)
    free = [knob.name for knob in space.free_knobs]
    words = {describe(candidate, free) for candidate in space.candidates}
    assert "1x16 on 4 ZeRO-3 vllm on 2" in words
