"""Which lists of changes are looked at, and what is said of them. The estimates are made up."""

import dataclasses
from typing import Any

import pytest

from autotune.facts.device_kinds import find_kind
from autotune.plan.cache import PlanCache
from autotune.plan.estimator import Estimator
from autotune.plan.narrowing import planned_space
from autotune.plan.questions.changes import more_devices
from autotune.plan.questions.leanest import decisive, leanest
from autotune.plan.questions.ways import Advisor
from autotune.process.child_server import ChildServer
from autotune.report.advice import advice_lines, advice_plain
from autotune.space.bind import bind
from autotune.space.definition import load_definition
from tests.unit.builders import make_estimate, make_facts, make_job, make_space
from tests.unit.estimate.speed.test_step_time import CEILINGS

GIB = 2**30


@dataclasses.dataclass(frozen=True, kw_only=True)
class Imagined(Estimator):
    """An estimator whose estimates are a function of the job and the candidate."""

    fits: Any
    speed: Any
    jobs: list
    p_oom: float

    def estimates_together(self, groups):
        return [estimator.estimates(candidates) for estimator, candidates in groups]

    def estimates(self, candidates):
        self.jobs.append(self.job.model_dump_json())
        estimates = {}
        for candidate in candidates:
            estimate = make_estimate(50 * GIB, self.speed(self.job, candidate))
            fits = bool(self.fits(self.job, candidate))
            estimates[candidate.key] = dataclasses.replace(
                estimate, fits=fits, p_oom=self.p_oom if fits else 1.0, host_bytes=70 * GIB
            )
        return estimates


@pytest.fixture
def advised(tmp_path):
    """What is advised about a job; the estimator hears of each job that is tried."""
    cache = PlanCache(path=tmp_path)
    cache.keep_ceilings(make_facts("cuda").device.name, CEILINGS)

    def advise(
        job,
        fits,
        speed=lambda job, one: 100.0,
        tried=(),
        kind=None,
        failed=False,
        jobs=(),
        facts=None,
        p_oom=0.0,
        plan=False,
    ):
        facts = facts or make_facts("cuda")
        estimator = Imagined(
            job=job,
            facts=facts,
            limit=40 * GIB,
            server=ChildServer(tmp_path / "log"),
            folder=tmp_path,
            rows=tmp_path,
            cache=cache,
            fits=fits,
            speed=speed,
            jobs=[] if jobs == () else jobs,
            p_oom=p_oom,
        )
        space = planned_space(load_definition(job.method), job, facts)
        device = None if kind is None else find_kind(kind)
        advisor = Advisor(estimator, device, tried)
        if plan:
            return advisor.shortest(estimator.estimates(space.candidates), space)
        return advisor.advice(space, seen_to_fail=failed)

    return advise


def changes(advice):
    return [{change.field for change in way.changes} for way in advice.ways]


def test_a_job_that_fits_needs_no_advice(advised):
    advice = advised(make_job(), lambda job, one: True)
    assert advice.fits and not advice.ways
    assert "It fits as it is" in "\n".join(advice_lines(advice))


def test_a_job_that_may_fit_is_not_called_safe_and_what_makes_it_safe_is_looked_for(advised):
    advice = advised(make_job(), lambda job, one: True, p_oom=0.3)
    assert advice.fits and not advice.safe
    assert advice_plain(advice)["safe"] is False
    assert advice.tried > 5, "lists of changes were estimated; none is safe either"
    first, second = advice_lines(advice)
    assert first.startswith("It is not safe as it is") and first.endswith("probability 30%.")
    assert second.startswith("No list of up to three changes makes it safe")


def test_one_change_that_is_enough_is_not_made_longer(advised):
    advice = advised(make_job(), lambda job, one: job.tuning == "lora")
    assert changes(advice) == [{"tuning"}]


def test_two_changes_are_tried_together_where_none_is_enough(advised):
    def fits(job, one):
        return one["dtype"] == "bfloat16" and one["optim"] == "adafactor"

    advice = advised(make_job(), fits)
    assert changes(advice) == [{"dtype", "optim"}]
    assert not advice.ways[0].learns_the_same


def test_nothing_is_changed_twice(advised):
    jobs: list[str] = []
    advice = advised(make_job(), lambda job, one: False, jobs=jobs)
    assert not advice.ways
    unchanged = make_job().model_dump_json()  # its leanest, and its speed
    asked = [job for job in jobs if job != unchanged]
    assert advice.tried == len(asked) == len(set(asked)) > 10
    away = [job for job in asked if '"zero_stage":3' in job]
    shorter = [job for job in away if '"max_length":256' in job]
    assert len(shorter) == 1 < len(away) < len(asked) / 3, "no list of three offloads"
    (line,) = [line for line in advice_lines(advice) if "No list" in line]
    assert str(advice.tried) in line


def test_what_probes_found_not_to_be_enough_is_no_way_but_part_of_one(advised):
    def fits(job, one):
        return job.tuning == "lora"

    advice = advised(make_job(), fits, tried=["`tuning: lora`"], failed=True)
    assert advice.ways
    assert all("tuning" in one and len(one) == 2 for one in changes(advice))


def test_a_reference_that_need_not_be_kept_is_leaner():
    job = make_job(method="dpo")
    space = bind(load_definition("dpo"), job, make_facts("cuda"))
    assert leanest(space)["precompute_ref_log_probs"] is True


def test_a_loosened_pin_is_no_change_of_what_is_learned_and_comes_first(advised):
    job = make_job(fixed={"gradient_checkpointing": False})

    def fits(job, one):
        return one["gradient_checkpointing"] or job.tuning == "lora"

    advice = advised(job, fits)
    assert changes(advice) == [{"gradient_checkpointing"}, {"tuning"}]
    lines = list(advice_lines(advice))
    assert "`gradient_checkpointing: true`" in lines[2]
    assert "stays the same" in lines[3]


def test_the_price_is_the_fastest_that_fits_then_against_the_fastest_that_does_not(advised):
    def speed(job, one):
        return 10.0 * one.micro_batch / (2 if job.tuning == "lora" else 1)

    def fits(job, one):
        return job.tuning == "lora" and one.micro_batch <= 4

    advice = advised(make_job(), fits, speed=speed)
    (way,) = advice.ways
    assert way.candidate.micro_batch == 4
    assert way.speed == pytest.approx(20 / 160)
    plain = advice_plain(advice)
    assert plain["ways"][0]["speed"] == way.speed
    assert plain["ways"][0]["changes"] == [{"text": "`tuning: lora`", "kind": "recipe"}]


@pytest.mark.parametrize("plan", [False, True])
def test_a_way_out_flattens_rows_of_many_lengths_as_a_plan_does(advised, plan):
    def fits(job, one):
        return job.tuning == "lora"

    facts = make_facts("cuda", installed=True)
    quantiles = {"p1": 30, "p50": 250}
    facts = dataclasses.replace(facts, data=dataclasses.replace(facts.data, quantiles=quantiles))
    (way,) = advised(make_job(), fits, facts=facts, plan=plan).ways
    assert way.candidate["attn_implementation"] == "flash_attention_2"
    assert way.candidate["padding_free"] is True


def test_what_a_single_gpu_may_keep_on_the_host_is_a_way_with_its_price(advised):
    def speed(job, one):
        return 100.0 / job.fixed.get("zero_stage", 1)

    def fits(job, one):
        return job.fixed.get("zero_stage") == 3 or job.tuning == "lora"

    advice = advised(make_job(), fits, speed=speed)
    assert changes(advice) == [{"offload_optimizer_device"}, {"tuning"}]
    away = advice.ways[0]
    assert away.candidate["offload_param_device"] == "cpu" and away.speed == pytest.approx(1 / 3)
    lines = "\n".join(advice_lines(advice))
    assert "1. optimizer and weights in the host's memory (`fixed: {distributed_type" in lines
    assert "33% of the 100 tokens/s of the unchanged job" in lines
    assert lines.count("70 GiB of the host's memory") == 1, "what stays on the GPU takes none"


def test_ways_are_looked_for_among_what_decides_about_memory():
    space = make_space(make_job(), make_facts("cuda"))
    some = decisive(space)
    assert leanest(space) in some
    assert len({one["optim"] for one in some}) == 1
    assert len({one.micro_batch for one in some}) > 1
    assert len({one["gradient_checkpointing"] for one in some}) == 2


def test_one_more_gpu_is_a_way_where_completions_are_generated_and_gpus_are_named(advised):
    def fits(job, one):
        return job.devices.count == 2

    rewards = ["get_soft_overlong_punishment"]
    job = make_job(method="grpo", max_length=None, reward_funcs=rewards, global_batch_size=48)
    found = advised(job, fits, kind="h100")
    assert {"devices"} in changes(found)
    assert "`--devices 2`" in "\n".join(advice_lines(found))
    assert not advised(job, fits).ways


def test_several_gpus_share_what_one_cannot_hold_and_the_fewest_are_named(advised):
    def fits(job, one):
        return job.devices.count >= 4 and one["zero_stage"] == 3

    found = advised(make_job(), fits, kind="h100")
    (way,) = [way for way in found.ways if way.changes[0].field == "devices"]
    assert way.changes[0].job.devices.count == 4 and way.learns_the_same
    assert way.candidate["offload_optimizer_device"] == "none"
    assert not advised(make_job(), fits).ways, "of the devices that are here one is tuned for"


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
    alone = [job for job in jobs[2:] if '"tuning":"full"' in job and '"fixed":{}' in job]
    assert not [job for job in alone if '"recipe":{"optim":["adamw_8bit"]}' in job]


def test_what_may_run_out_of_memory_is_no_way_out(advised):
    found = advised(make_job(), lambda job, one: job.tuning == "lora", p_oom=0.3)
    assert not found.ways


def test_a_plan_names_the_shortest_ways_and_nothing_offloaded_that_was_not_traced(advised):
    found = advised(make_job(), lambda job, one: job.fixed or job.tuning != "full", plan=True)
    assert changes(found) == [{"tuning"}]
    assert found.ways[0].changes[0].text == "`tuning: lora`"
