"""Which lists of changes are looked at, and what is said of them. The estimates are made up."""

import dataclasses
from typing import Any

import pytest

from autotune.facts.device_kinds import find_kind
from autotune.plan.cache import PlanCache
from autotune.plan.estimator import Estimator
from autotune.plan.narrowing import planned_space
from autotune.plan.questions.changes import CLOSED_FORM, more_devices
from autotune.plan.questions.ways import FASTEST, MOST_LISTS, MOST_WAYS, Advisor, ChangedJob
from autotune.plan.trace_choice import BY_FORMULA
from autotune.process.child_server import ChildServer
from autotune.report.plan_answer import advice_lines, advice_plain
from autotune.space.definition import load_definition
from autotune.space.memory_order import expected_leanness
from tests.unit.builders import GIB, make_estimate, make_facts, make_job


@dataclasses.dataclass(frozen=True, kw_only=True)
class Imagined(Estimator):
    """An estimator whose estimates are a function of the job and the candidate."""

    fits: Any
    speed: Any
    jobs: list
    p_oom: float
    method: str

    def estimates_together(self, groups):
        return [estimator.estimates(candidates) for estimator, candidates in groups]

    def estimates(self, candidates):
        self.jobs.append(self.job.model_dump_json())
        estimates = {}
        for candidate in candidates:
            estimate = make_estimate(50 * GIB, self.speed(self.job, candidate))
            fits = bool(self.fits(self.job, candidate))
            estimates[candidate.key] = dataclasses.replace(
                estimate,
                fits=fits,
                p_oom=self.p_oom if fits else 1.0,
                host_bytes=70 * GIB,
                method=self.method,
            )
        return estimates


@pytest.fixture
def estimator(tmp_path):
    """An estimator of a job; it writes down each job that is estimated."""

    def made(job, fits, speed=lambda job, one: 100.0, facts=None, p_oom=0.0, jobs=None, **fields):
        return Imagined(
            job=job,
            facts=facts or make_facts("cuda"),
            limit=40 * GIB,
            server=ChildServer(tmp_path / "log"),
            folder=tmp_path,
            rows=tmp_path,
            cache=PlanCache(path=tmp_path),
            fits=fits,
            speed=speed,
            jobs=[] if jobs is None else jobs,
            p_oom=p_oom,
            **{"method": "trace", **fields},
        )

    return made


@pytest.fixture
def advised(estimator):
    """Return what is advised about a job."""

    def advise(job, fits, kind=None, tried=(), failed=False, most=MOST_WAYS, **fields):
        effort = fields.pop("effort", FASTEST)
        made = estimator(job, fits, **fields)
        device = None if kind is None else find_kind(kind)
        advisor = Advisor(made, device, tried=tried, most=most, effort=effort)
        space = planned_space(load_definition(job.method), job, made.facts)
        return advisor.advice(space, seen_to_fail=failed)

    return advise


def changes(advice):
    return [{change.field for change in way.changes} for way in advice.ways]


def test_one_change_that_is_enough_is_not_made_longer(advised):
    advice = advised(make_job(), lambda job, one: job.tuning == "lora")
    assert changes(advice) == [{"tuning"}]
    assert not advice.fits and not advice.safe


def test_a_job_that_may_fit_is_not_called_safe(advised):
    advice = advised(make_job(), lambda job, one: True, p_oom=0.3)
    assert advice.fits and not advice.safe and not advice.ways
    assert advice_plain(advice)["safe"] is False
    assert advice.tried > MOST_LISTS, "lists of two were estimated, too; none is safe"
    (line,) = advice_lines(advice)
    assert line == f"No change was found that makes it fit ({advice.tried} were estimated)."
    safe = advised(make_job(), lambda job, one: True)
    assert safe.fits and safe.safe


def test_two_changes_are_tried_together_where_none_is_enough(advised):
    def fits(job, one):
        return one["dtype"] == "bfloat16" and one["optim"] == "adafactor"

    advice = advised(make_job(), fits)
    assert changes(advice) == [{"dtype", "optim"}]
    assert not advice.ways[0].learns_the_same


def test_three_changes_are_never_tried_together(advised):
    def fits(job, one):
        shorter = (job.max_length or 1024) < 1024
        return one["dtype"] == "bfloat16" and one["optim"] == "adafactor" and shorter

    assert not advised(make_job(), fits).ways


def test_nothing_is_estimated_twice_and_no_more_than_so_many_lists_of_a_length(advised):
    jobs: list[str] = []
    advice = advised(make_job(), lambda job, one: False, jobs=jobs)
    assert not advice.ways
    unchanged, *asked = jobs
    assert advice.tried == len(asked) == len({*asked, unchanged}) - 1 > 10
    assert advice.tried <= 2 * MOST_LISTS
    on_cpu = advised(make_job(), lambda job, one: False, facts=make_facts("cpu"))
    assert on_cpu.tried <= 8


def test_it_ends_where_enough_ways_are_found(advised):
    few = advised(make_job(), lambda job, one: job != make_job(), most=1)
    many = advised(make_job(), lambda job, one: job != make_job(), most=12)
    assert len(few.ways) == 1 and few.tried < many.tried
    fields = [way.changes[0].field for way in many.ways]
    assert len(fields) == len(set(fields)) > MOST_WAYS, "of each field one"
    assert all(len(way.changes) == 1 for way in many.ways)


def test_of_changes_of_one_field_the_smallest_that_is_enough_is_named(advised):
    def fits(job, one):
        return (job.max_length or 1024) <= 256

    advice = advised(make_job(), fits)
    assert [way.changes[0].text for way in advice.ways] == ["`max_length: 256`"]
    half = advised(make_job(), lambda job, one: (job.max_length or 1024) <= 512)
    assert [way.changes[0].text for way in half.ways] == ["`max_length: 512`"]


def test_what_probes_found_not_to_be_enough_is_no_way_but_part_of_one(advised):
    def fits(job, one):
        return job.tuning == "lora"

    advice = advised(make_job(), fits, tried=["`tuning: lora`"], failed=True)
    assert advice.ways and not advice.fits
    assert all("tuning" in one and len(one) == 2 for one in changes(advice))


def test_a_loosened_pin_is_no_change_of_what_is_learned_and_comes_first(advised):
    job = make_job(fixed={"gradient_checkpointing": False})

    def fits(job, one):
        return one["gradient_checkpointing"] or job.tuning == "lora"

    advice = advised(job, fits)
    assert changes(advice) == [{"gradient_checkpointing"}, {"tuning"}]
    lines = list(advice_lines(advice))
    assert "1. `gradient_checkpointing: true` in place of the pinned `false`" in lines[1]
    assert "what is learned stays the same" in lines[2]
    assert "changes what is learned: adapters are trained, not the weights" in lines[4]


def test_a_way_is_to_the_fastest_that_is_safe(advised):
    def fits(job, one):
        return job.tuning == "lora" and one.micro_batch <= 4

    advice = advised(make_job(), fits, speed=lambda job, one: 10.0 * one.micro_batch)
    (way,) = advice.ways
    assert way.candidate.micro_batch == 4 and way.estimate.tokens_per_s == 40
    (plain,) = advice_plain(advice)["ways"]
    assert plain["changes"] == [{"text": "`tuning: lora`", "kind": "recipe"}]
    assert plain["fields"] == {"tuning": "lora"} and plain["knobs"] == way.candidate.knobs
    assert "40 tokens/s" in list(advice_lines(advice))[2]


def test_among_as_many_changes_what_learns_the_same_comes_first_and_then_the_fastest(advised):
    job = make_job(fixed={"gradient_checkpointing": False})

    def fits(job, one):
        return one["gradient_checkpointing"] or job.tuning == "lora" or one["optim"] == "adafactor"

    def speed(job, one):
        return 300.0 if one["optim"] == "adafactor" else 200.0 if job.tuning == "lora" else 9.0

    found = changes(advised(job, fits, speed=speed))
    assert found == [{"gradient_checkpointing"}, {"optim"}, {"tuning"}]


def test_what_a_single_gpu_may_keep_on_the_host_is_named_only_where_it_may_be_traced(advised):
    def fits(job, one):
        return job.fixed.get("zero_stage") == 3 or job.tuning == "lora"

    advice = advised(make_job(), fits)
    assert changes(advice) == [{"offload_optimizer_device"}, {"tuning"}]
    assert advice.ways[0].candidate["offload_param_device"] == "cpu"
    lines = "\n".join(advice_lines(advice))
    assert "1. optimizer and weights in the host's memory (`fixed: {distributed_type" in lines
    assert lines.count("70 GiB of the host's memory") == 1, "what stays on the GPU takes none"
    assert changes(advised(make_job(), fits, effort=BY_FORMULA)) == [{"tuning"}]


def test_what_was_not_traced_and_what_may_run_out_of_memory_is_no_way_out(advised):
    def fits(job, one):
        return job.tuning == "lora"

    assert not advised(make_job(), fits, p_oom=0.3).ways
    assert not advised(make_job(), fits, method=CLOSED_FORM).ways


def test_the_candidates_of_a_changed_job_differ_in_what_decides_about_memory(estimator):
    changed = ChangedJob((), estimator(make_job(), lambda job, one: True))
    lean, *_ = some = changed.candidates
    assert lean.micro_batch == min(one.micro_batch for one in changed.space.candidates)
    assert len({one["optim"] for one in some}) == 1
    assert len({one.micro_batch for one in some}) > 1
    assert len({one["gradient_checkpointing"] for one in some}) == 2
    on_cpu = estimator(make_job(), lambda job, one: True, facts=make_facts("cpu"))
    assert len(ChangedJob((), on_cpu).candidates) == 1, "each is a trace of its own there"


def test_a_reference_that_need_not_be_kept_is_leaner():
    space = planned_space(load_definition("dpo"), make_job(method="dpo"), make_facts("cuda"))
    assert min(space.candidates, key=expected_leanness)["precompute_ref_log_probs"] is True


def test_one_more_gpu_is_a_way_where_completions_are_generated_and_gpus_are_named(advised):
    def fits(job, one):
        return job.devices.count == 2

    rewards = ["get_soft_overlong_punishment"]
    job = make_job(method="grpo", max_length=None, reward_funcs=rewards, global_batch_size=48)
    found = advised(job, fits, kind="h100")
    assert {"devices"} in changes(found)
    assert "`devices: {count: 2}`" in "\n".join(advice_lines(found))
    assert not advised(job, fits).ways


def test_several_gpus_share_what_one_cannot_hold_and_the_fewest_are_named(advised):
    def fits(job, one):
        return job.devices.count >= 4

    found = advised(make_job(), fits, kind="h100", effort=BY_FORMULA)
    (way,) = [way for way in found.ways if way.changes[0].field == "devices"]
    assert way.changes[0].job.devices.count == 4 and way.learns_the_same
    assert way.candidate["offload_optimizer_device"] == "none"
    assert not advised(make_job(), fits).ways, "of the devices that are here one is tuned for"


def test_more_gpus_come_after_what_changes_the_learning_on_those_that_are_there(advised):
    def fits(job, one):
        return job.devices.count > 1 or one["dtype"] == "bfloat16"

    found = advised(make_job(), fits, kind="h100", speed=lambda job, one: 100.0 * job.devices.count)
    assert changes(found) == [{"dtype"}, {"devices"}]
    assert found.ways[1].learns_the_same and not found.ways[0].learns_the_same


def test_the_next_number_of_gpus_keeps_the_batch_exact():
    job = make_job(method="ppo", max_length=None, global_batch_size=9)
    (change,) = more_devices(job)
    assert change.job.devices.count == 3
    assert not list(more_devices(change.job))


def test_what_its_weights_alone_rule_out_is_never_estimated(advised):
    """7.6e9 parameters with gradients and moments are 113 GiB, with an adapter 28 GiB."""
    jobs: list[str] = []
    facts = make_facts("cuda")
    large = dataclasses.replace(facts.model, parameters=7_600_000_000)
    found = advised(
        make_job(),
        lambda job, one: job.tuning != "full",
        jobs=jobs,
        facts=dataclasses.replace(facts, model=large),
    )
    assert changes(found)[0] == {"tuning"} and found.ruled_out > 0
    alone = [job for job in jobs[1:] if '"tuning":"full"' in job and '"fixed":{}' in job]
    assert not [job for job in alone if '"recipe":{"optim":["adamw_8bit"]}' in job]
    assert f"of {found.ruled_out} the weights" in "\n".join(
        advice_lines(dataclasses.replace(found, ways=()))
    )
