"""Generation by vLLM: what it takes of a device, and what a job may ask of it."""

from dataclasses import replace

import pytest

from autotune.errors import UserError
from autotune.estimate.estimate import estimated
from autotune.estimate.formula.closed_form import Dimensions, closed_form
from autotune.estimate.protocol import Point, PointReply
from autotune.estimate.records.decoding import without_generations
from autotune.estimate.records.events import ALLOCATE, FREE, PHASE
from autotune.estimate.residual import Residual
from autotune.estimate.variants.rollouts import with_vllm as beside_estimate
from autotune.plan.questions.changes import single_changes
from autotune.probe.measure import probe_request
from autotune.probe.memory import with_vllm
from autotune.probe.protocol import Measurement
from autotune.process.limits import LaunchReport
from autotune.run.bundle_launch import _fewer_together
from autotune.run.verdict import TimedSteps, judge, vllm_runs
from autotune.search.recommend import Ranked
from autotune.space.bind import bind
from autotune.space.definition import load_definition
from autotune.space.trl_config import settings
from autotune.space.vllm.colocated import ASLEEP_BYTES, least_share, needed_share, vllm_share
from autotune.space.vllm.memory import VllmShare
from tests.unit.builders import GIB, make_facts, make_job
from tests.unit.loading import load, problems

GRPO = "method: grpo\nreward_funcs: [get_soft_overlong_punishment]\n"
PINNED = {
    "use_vllm": True,
    "optim": "adamw_torch_fused",
    "attn_implementation": "sdpa",
    "gradient_checkpointing": False,
    "num_generations": 4,
    "max_completion_length": 500,
}


def grpo(**fixed):
    rewards = ["get_soft_overlong_punishment"]
    return make_job(method="grpo", max_length=None, reward_funcs=rewards, fixed={**PINNED, **fixed})


def facts(*, gib=16, cache=1 << 20, sampled=False):
    """1000 tokens at most in a prompt; a MiB of cache for each token."""
    facts_of_model = make_facts("cuda", longest=1000, sampled=sampled)
    model = replace(
        facts_of_model.model, parameters=10**9, hidden_size=1024, cache_bytes_per_token=cache
    )
    device = replace(facts_of_model.device, total_bytes=gib * GIB, free_bytes=gib * GIB)
    return replace(facts_of_model, model=model, device=device)


def space_of(job, facts_of_model):
    return bind(load_definition("grpo"), job, facts_of_model)


def test_the_share_holds_weights_and_all_completions_of_a_generation():
    job, machine_facts = grpo(), facts(gib=100)
    for completions in (4, 16):
        share = needed_share(job, machine_facts, completions, 500)
        cache = completions * 1500 * 2**20
        weights = 2 * 10**9
        assert cache + weights < share * 100 * GIB < cache + weights + 3 * GIB
    assert needed_share(job, facts(cache=None), 4, 500) is None


def test_each_generation_batch_has_the_share_that_it_needs():
    space = space_of(grpo(), facts(gib=100))
    pairs = {
        (c["generation_batch_size"], c["vllm_gpu_memory_utilization"]) for c in space.candidates
    }
    assert len(pairs) == len({completions for completions, _ in pairs}) == 3
    assert sorted(pairs) == sorted(pairs, key=lambda pair: pair[1])


def test_a_share_that_is_pinned_is_kept_for_all():
    space = space_of(grpo(vllm_gpu_memory_utilization=0.4), facts(gib=100))
    assert {c["vllm_gpu_memory_utilization"] for c in space.candidates} == {0.4}


def test_too_little_for_vllm_to_start_names_the_least():
    machine_facts = facts(gib=100)
    smallest = least_share(grpo(), machine_facts, 500)
    assert space_of(grpo(vllm_gpu_memory_utilization=smallest), machine_facts).candidates
    with pytest.raises(UserError, match=f"less than `vllm_gpu_memory_utilization: {smallest}`"):
        space_of(grpo(vllm_gpu_memory_utilization=round(smallest - 0.01, 2)), machine_facts)
    with pytest.raises(UserError, match="do not fit in vLLM's memory"):
        space_of(grpo(), facts(gib=4))


def test_where_not_all_prompts_are_known_vllm_is_told_no_length():
    for sampled, length in ((False, 1500), (True, None)):
        machine_facts = facts(gib=100, sampled=sampled)
        candidate = space_of(grpo(), machine_facts).default()
        config = settings(grpo(), machine_facts, candidate, "out").config
        assert config.get("vllm_max_model_length") == length
        assert config["use_vllm"] is True and config["vllm_mode"] == "colocate"


def test_a_sample_of_the_data_leaves_vllm_ready_for_all_that_the_model_takes():
    """2048 positions in place of 1500 tokens; so too where the job evaluates on other prompts."""
    all_rows, sampled_rows = facts(gib=100), facts(gib=100, sampled=True)
    sure, unsure = (
        least_share(grpo(), facts_of_data, 500) for facts_of_data in (all_rows, sampled_rows)
    )
    assert unsure - sure == pytest.approx(548 / 1024 / 100, abs=0.011)
    evaluates = grpo().model_copy(update={"training": {"eval_strategy": "steps"}})
    assert least_share(evaluates, all_rows, 500) == unsure
    job = grpo().model_copy(update={"training": {"vllm_max_model_length": 2048}})
    assert least_share(job, all_rows, 500) == unsure
    config = settings(evaluates, all_rows, space_of(evaluates, all_rows).default(), "out").config
    assert "vllm_max_model_length" not in config


def test_vllm_takes_nothing_longer_than_the_model_was_made_for():
    machine_facts = facts(gib=100)
    machine_facts = replace(machine_facts, model=replace(machine_facts.model, max_positions=1400))
    with pytest.raises(UserError, match="more than the 1400 positions"):
        space_of(grpo(), machine_facts)


@pytest.mark.parametrize("traced", [True, False])
def test_nothing_is_learned_of_what_vllm_is_given(traced):
    """A process that takes 10% more than its tensors says nothing of vLLM's memory."""
    peak, share = 10 * GIB, 20 * GIB
    residual = Residual(offset_bytes=GIB, sigma_bytes=1, relative_sigma=0.1, bias=0.1)
    if traced:
        point = PointReply(
            peak_allocated_bytes=peak + share,
            peak_reserved_bytes=peak + share,
            parts={"weights": peak, "vllm": share},
            operator="",
            phase="",
            method="trace",
            oom=False,
            missing_bytes=None,
            retries=0,
            phases={},
            sample=[],
            masked=True,
        )
        estimate = estimated(point, (), residual, 40 * GIB, 4)
        assert estimate.peak_memory_bytes == round(1.1 * peak) + GIB + share
        bare = replace(point, peak_reserved_bytes=peak, parts={"weights": peak})
        assert estimate.sigma_bytes == estimated(bare, (), residual, 20 * GIB, 4).sigma_bytes
    else:
        size = Dimensions(
            parameters=10**9,
            trained=10**9,
            layers=2,
            hidden=1024,
            heads=8,
            vocabulary=32000,
            tokens=1024,
            length=512,
            vllm=VllmShare(awake_bytes=share, asleep_bytes=GIB),
        )
        estimate = closed_form({}, size, residual, 90 * GIB, "")
        # Awake beside weights, gradients and moments: more than asleep beside all.
        lasting = sum(estimate.parts[name] for name in ("weights", "gradients", "optimizer"))
        assert estimate.peak_reserved_bytes == lasting + share
    assert estimate.own_reserved_bytes + estimate.vllm_bytes == estimate.peak_reserved_bytes


@pytest.mark.parametrize(
    ("parts", "peak", "problem"),
    [(1, 11, False), (1, 30, True), (2, 30, False)],
)
def test_a_launch_without_vllm_is_held_against_what_transformers_take(parts, peak, problem):
    """The job takes 60 GiB, 50 of them vLLM's; transformers generated in 12."""
    machine_facts, job = facts(gib=100), grpo(vllm_gpu_memory_utilization=0.5)
    candidate = space_of(job, machine_facts).default()
    measurement = Measurement(
        outcome="ok",
        reason="",
        tokens_per_s=100.0,
        peak_memory_bytes=60 * GIB,
        reserved_peak_bytes=9 * GIB,
        vllm_bytes=50 * GIB,
        generation_peak_bytes=11 * GIB,
        generation_parts=parts,
    )
    report = LaunchReport(
        exit_code=0,
        timed_out=False,
        seconds=9.0,
        lines=(),
        peak_resident_bytes=None,
        peak_gpu_bytes=peak * GIB,
    )
    ranked = Ranked(number=0, candidate=candidate, measurement=measurement)

    def launched(machine):
        return settings(job, machine, candidate)

    state = {"log_history": [{"eval_loss": 1.0}]}
    timed = TimedSteps(tokens=900.0, begin_s=0.0, end_s=9.0)
    verdict = judge(report, state, timed, ranked, launched(machine_facts), "log")
    assert verdict.verified is not problem
    assert ("was promised" in verdict.reason) is problem
    assert verdict.promised_peak_memory_bytes == 12 * GIB
    if not problem:
        assert "vLLM was not run" in verdict.reason
    # Where it is installed the launch is the job itself.
    facts_there = replace(machine_facts, stack=replace(machine_facts.stack, absent=()))
    assert judge(report, state, timed, ranked, launched(facts_there), "").verified
    assert vllm_runs(launched(facts_there))


@pytest.mark.parametrize(
    ("parts", "processes", "completions"),
    [(1, 1, None), (2, 1, 8), (4, 1, 4), (64, 1, 4), (4, 4, 8), (1, 4, None)],
)
def test_a_launch_generates_as_few_together_as_fitted(parts, processes, completions):
    config = {"generation_batch_size": 16, "per_device_train_batch_size": 2, "num_generations": 4}
    fewer = _fewer_together(config, parts, processes)
    assert fewer == ({} if completions is None else {"generation_batch_size": completions})


def test_a_server_takes_nothing_of_the_device_that_trains():
    job, machine_facts = grpo(vllm_mode="server"), facts()
    candidate = space_of(job, machine_facts).default()
    config = settings(job, machine_facts, candidate, "out").config
    assert candidate["vllm_gpu_memory_utilization"] == 0.9  # of the server's own GPUs
    assert "vllm_gpu_memory_utilization" not in config
    assert vllm_share(config, machine_facts.device.total_bytes) is None


def test_the_limit_of_a_probe_is_what_vllm_leaves(tmp_path):
    machine_facts = facts(gib=100)
    for sleeps, limit in ((False, 40 * GIB), (True, 100 * GIB - ASLEEP_BYTES)):
        job = grpo(vllm_gpu_memory_utilization=0.6, vllm_enable_sleep_mode=sleeps)
        candidate = space_of(job, machine_facts).default()
        request = probe_request(
            settings(job, machine_facts, candidate), rows=tmp_path, limit=100 * GIB
        )
        assert request.process_limit_bytes == limit
        assert request.memory_limit_bytes == 100 * GIB


@pytest.mark.parametrize(
    ("asleep", "resident", "vllm_bytes"),
    [(None, 20, 60), (None, 90, 60), (1, 20, 1), (1, 35, 15)],
)
def test_the_peak_is_that_of_training_and_vllm_together(tmp_path, asleep, resident, vllm_bytes):
    """Of 80 at most the training holds `resident` while vLLM, awake, has 60."""
    machine_facts = facts(gib=100)
    request = replace(
        probe_request(
            settings(grpo(), machine_facts, space_of(grpo(), machine_facts).default()),
            rows=tmp_path,
            limit=None,
        ),
        vllm_bytes=60,
        vllm_asleep_bytes=asleep,
    )
    figures = with_vllm({"peak_memory_bytes": 80}, request, resident)
    assert figures == {"peak_memory_bytes": 80 + vllm_bytes, "vllm_bytes": vllm_bytes}
    point = Point(batching={}, accumulates=False, vllm_bytes=60, vllm_asleep_bytes=asleep)
    step = {"peak_reserved_bytes": 80, "peak_allocated_bytes": 70, "parts": {}, "phase": "step"}
    estimate = beside_estimate(step, point, resident)
    assert estimate["peak_reserved_bytes"] == 80 + vllm_bytes
    assert estimate["parts"] == {"vllm": vllm_bytes}
    assert estimate["phase"] == ("generation" if (asleep, resident) == (1, 35) else "step")


def test_what_only_generation_holds_is_left_out_of_the_record():
    events = [
        (ALLOCATE, 1, 10, "weights", "", 0),
        (PHASE, "generation", 0),
        (ALLOCATE, 2, 99, "activations", "cache", 0),
        (PHASE, "decode", 0),
        (ALLOCATE, 3, 5, "activations", "ids", 0),
        (FREE, 2, 0),
        (FREE, -7, 0),
        (PHASE, "scoring", 0),
        (FREE, 3, 0),
    ]
    remaining_events = without_generations(events)
    assert [event[1] for event in remaining_events] == [1, "generation", "decode", 3, "scoring", 3]
    # To wake vLLM the trainer empties the allocator's cache.
    remaining_events = without_generations(events, asleep=True)
    assert [event[1] for event in remaining_events] == [
        1,
        "generation",
        "decode",
        3,
        -7,
        "scoring",
        3,
    ]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("fixed: {vllm_mode: server}\n", "`vllm_mode` needs `fixed: {use_vllm: true}`"),
        (
            "fixed: {use_vllm: true, vllm_mode: server, vllm_enable_sleep_mode: true}\n",
            "`vllm_enable_sleep_mode` needs `fixed: {vllm_mode: colocate}`",
        ),
        ("fixed: {use_vllm: true, vllm_gpu_memory_utilization: 30}\n", "at most 1"),
        ("fixed: {use_vllm: true, vllm_gpu_memory_utilization: most}\n", "at most 1"),
        ("fixed: {use_vllm: 'yes'}\n", "`use_vllm` cannot be"),
        ("recipe: {use_vllm: [false, true]}\n", "several values"),
    ],
)
def test_what_makes_no_sense_beside_it_is_refused(folder, text, what):
    reported = problems(folder, GRPO + text)
    assert len(reported) == 1 and what in reported[0][1]


def test_a_job_may_ask_for_it_among_the_training_fields(folder):
    job = load(folder, GRPO + "training: {use_vllm: true, vllm_server_port: 9000}\n")
    assert job.fixed["use_vllm"] is True
    assert any("do not run vLLM" in assumption for assumption in job.assumed)


def test_the_ways_out_let_vllm_sleep_or_do_without_it():
    job, machine_facts = grpo(), facts(gib=100)
    changes = {c.field: c for c in single_changes(job, space_of(job, machine_facts).default())}
    assert changes["vllm_enable_sleep_mode"].kind == changes["use_vllm"].kind == "speed"
    for name in ("vllm_enable_sleep_mode", "use_vllm"):
        assert space_of(changes[name].job, machine_facts).candidates
    # A quantised base beside vLLM is not built.
    assert [c.job.tuning for c in changes.values()].count("qlora") == 0
