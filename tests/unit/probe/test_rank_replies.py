"""What ranks come to as one, which prompts each gets, and what a space includes of them."""

import json
import os
from pathlib import Path

import pytest

from autotune.errors import UserError
from autotune.probe.protocol import Measurement
from autotune.probe.rank_replies import (
    SILENT,
    WITH_OTHERS,
    clear_ranks,
    lagging_ranks,
    merged_measurement,
    merged_reply,
    rank_folder,
)
from autotune.probe.ranks_worker import RankEnding, root_failure
from autotune.probe.survey import refuse_untried
from autotune.process.messages import ChildFolder
from autotune.space.definition import INCLUDES, load_definition, shared_part
from autotune.space.memory_order import expected_leanness
from autotune.space.sharding.sharding import KNOBS, Sharding, engine_name, sharding_of
from autotune.training.rollout_plan import Rollout, dealt_order
from tests.unit.builders import make_facts, make_job, make_space


def reply(**fields):
    plain = {"outcome": "ok", "reason": "measured", "failure": None}
    return Measurement(outcome="ok", reason="measured").plain() | plain | fields


def test_the_slowest_rank_and_the_highest_peaks_count():
    fast = reply(tokens_per_s=90.0, step_time_s=1.0, peak_memory_bytes=7, update_peak_bytes=2)
    slow = reply(tokens_per_s=80.0, step_time_s=1.1, peak_memory_bytes=5, update_peak_bytes=4)
    result = merged_reply([fast, slow])
    assert (result["tokens_per_s"], result["step_time_s"]) == (80.0, 1.1)
    assert (result["peak_memory_bytes"], result["update_peak_bytes"]) == (7, 4)
    assert result["reserved_peak_bytes"] is None
    ranks = [
        (rank["rank"], rank["tokens_per_s"], rank["peak_memory_bytes"]) for rank in result["ranks"]
    ]
    assert ranks == [(0, 90.0, 7), (1, 80.0, 5)]
    assert Measurement.from_plain(result).ranks == result["ranks"]


def test_a_rank_above_its_limit_makes_all_of_it_too_much():
    oom_reply = reply(outcome="oom", tokens_per_s=90.0, peak_memory_bytes=9, missing_bytes=1)
    result = merged_reply([reply(tokens_per_s=80.0, peak_memory_bytes=5), oom_reply])
    assert (result["outcome"], result["missing_bytes"], result["peak_memory_bytes"]) == (
        "oom",
        1,
        9,
    )


def test_machines_are_numbered_on_and_the_failure_that_others_followed_is_theirs(tmp_path):
    def machine(first, node, **fields):
        return merged_reply([reply(), reply(**fields)], first) | {"node": node}

    both = [machine(0, "a", tokens_per_s=9.0), machine(2, "b", peak_memory_bytes=7)]
    found = merged_measurement(both, tmp_path)
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1, 2, 3]
    assert (found["node"], found["peak_memory_bytes"]) == ("a, b", 7)
    above = machine(2, "b", outcome="oom", peak_memory_bytes=9)
    assert merged_measurement([both[0], above], tmp_path)["failed_rank"] == 3

    for rank, at in ((0, 20), (3, 10)):
        file = rank_folder(tmp_path, rank).reply
        file.parent.mkdir()
        file.touch()
        os.utime(file, (at, at))
    crashed = reply(outcome="crash", failure={"type": "E"}, node="a", failed_rank=0)
    stopped = reply(outcome="stopped", reason=WITH_OTHERS, node="b")
    earlier = {**crashed, "node": "b", "failed_rank": 3}
    silent = reply(outcome="crash", reason="ended by SIGSEGV", node="b")
    full = reply(outcome="oom", failure={"type": "O"}, node="b", failed_rank=3)
    for other in (earlier, silent, full):
        assert merged_measurement([crashed, other], tmp_path) == other
    for other in (stopped, both[1]):
        assert merged_measurement([crashed, other], tmp_path) == crashed


@pytest.mark.parametrize(
    ("steps", "late_ranks"), [([5, 5], []), ([5, 4], [1]), ([3, 5, 4], [0, 2]), ([], [])]
)
def test_who_is_behind(steps, late_ranks):
    assert lagging_ranks(steps) == late_ranks


def ending(rank, folders, *, reply=None, when=0, **fields):
    if reply is not None:
        folders[rank].path.mkdir()
        folders[rank].reply.write_text(json.dumps(reply), encoding="utf-8")
        os.utime(folders[rank].reply, (when, when))
    return RankEnding(
        rank=rank, exit_code=fields.get("code"), signal=fields.get("signal"), reply=reply
    )


def test_the_first_failure_is_a_silent_death_or_the_earliest_reply(tmp_path: Path):
    folders = [ChildFolder(path=tmp_path / str(rank)) for rank in range(3)]
    late_ending = ending(0, folders, reply={"outcome": "crash"}, when=20)
    early = ending(1, folders, reply={"outcome": "unstable"}, when=10)
    assert root_failure([late_ending, early], folders) is early
    silent = ending(2, folders, signal=9)
    assert root_failure([late_ending, early, silent], folders) is silent


def rollout(**changes):
    usual = {"micro_batch": 2, "accumulation": 2, "completions": 8, "group": 4, "length": 5}
    return Rollout(**{**usual, "iterations": 1, "seed": 0, **changes})


def test_each_rank_gets_the_same_prompts():
    # Two prompts a round and device: a generation has those of all devices one behind the other.
    assert dealt_order([1, 2, 3, 4], rollout(), 1) == [1, 2, 3, 4]
    assert dealt_order([1, 2, 3, 4], rollout(), 2) == [1, 2, 1, 2, 3, 4, 3, 4]
    # A group of eight, four completions of it on each of two devices: one prompt for both.
    rollout_of_a_device = rollout(completions=4, group=8)
    assert rollout_of_a_device.prompts == 1
    assert dealt_order([1, 2], rollout_of_a_device, 2) == [1, 2]
    assert dealt_order([1, 2], rollout_of_a_device, 4) == [1, 1, 2, 2]


@pytest.mark.parametrize(
    ("pins", "name"),
    [
        ({}, "ZeRO-3, optimizer on cpu, weights on cpu"),
        ({"offload_optimizer_device": "none"}, "ZeRO-3, weights on cpu"),
        ({"offload_optimizer_device": "none", "offload_param_device": "none"}, "ZeRO-3"),
        ({"distributed_type": "FSDP"}, "FSDP2"),
    ],
)
def test_the_leanest_candidate_divides_and_offloads_most(pins, name):
    values = {"attn_implementation": "sdpa", "gradient_checkpointing": True}
    fixed = {"optim": "adamw_torch", "per_device_train_batch_size": 1, **values, **pins}
    job = make_job(devices={"kind": "cuda", "count": 8}, fixed=fixed)
    lean = min(make_space(job, make_facts("cuda")).candidates, key=expected_leanness)
    assert engine_name(sharding_of(lean.values, 8)) == name


def test_spaces_take_the_knobs_of_several_devices_in():
    shared_definition = shared_part(INCLUDES[0])
    assert [knob.name for knob in shared_definition.knobs] == list(KNOBS)
    for method in ("sft", "reward", "dpo", "kto", "grpo", "rloo"):
        definition = load_definition(method)
        assert all(knob in definition.knobs for knob in shared_definition.knobs), method
        assert all(rule in definition.rules for rule in shared_definition.rules), method
    knobs = {knob.name: knob for knob in load_definition("ppo").knobs if knob.name in KNOBS}
    assert set(knobs) == {"num_processes", "distributed_type"}
    assert knobs["distributed_type"].values == {
        "cpu": ["MULTI_CPU", "NO"],
        "cuda": ["MULTI_GPU", "NO"],
    }


def test_one_process_shares_nothing():
    assert sharding_of({"distributed_type": "MULTI_GPU"}, 1) == Sharding()
    values = {"distributed_type": "DEEPSPEED", "zero_stage": 3}
    assert not sharding_of(values, 1).offloads  # which is all that DeepSpeed is for there
    sharding = sharding_of(values, 4)
    assert (sharding.num_processes, sharding.zero_stage) == (4, 3)
    assert not sharding.offloads


def test_several_machines_are_refused():
    job = make_job()
    refuse_untried(job)
    two_machines = job.devices.model_copy(update={"count": 2, "nodes": 2})
    with pytest.raises(UserError, match="probes run on one machine"):
        refuse_untried(job.model_copy(update={"devices": two_machines}))


def test_memory_that_ran_out_counts_before_what_died_of_it(tmp_path: Path):
    folders = [ChildFolder(path=tmp_path / str(rank)) for rank in range(2)]
    full = ending(1, folders, reply={"outcome": "oom"}, when=10)
    aborted = ending(0, folders, signal=6)
    assert root_failure([full, aborted], folders) is full


def test_the_rank_that_ends_furthest_above_its_limit_is_named():
    replies = [
        reply(outcome="oom", tokens_per_s=1.0, peak_memory_bytes=8, missing_bytes=1),
        reply(outcome="oom", tokens_per_s=1.0, peak_memory_bytes=9, missing_bytes=2),
    ]
    result = merged_reply(replies)
    assert (result["failed_rank"], result["missing_bytes"]) == (1, 2)


def test_nothing_of_an_earlier_probe_is_left(tmp_path: Path):
    old = rank_folder(tmp_path / "probe", 1)
    old.path.mkdir(parents=True)
    old.progress.write_text("{}")
    (tmp_path / "probe" / SILENT).write_text('{"rank": 1}')
    clear_ranks(tmp_path / "probe")
    assert list((tmp_path / "probe").iterdir()) == []
