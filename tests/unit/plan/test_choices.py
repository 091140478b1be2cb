"""Candidates as choices that a person tells apart, and the answer that is their first."""

from dataclasses import replace

from autotune.estimate.variant import LIGER_MODELS
from autotune.plan.answer import answer_of, in_other_dtype, training_s
from autotune.plan.choices import SAFE, choices, is_safe, shortened
from autotune.plan.narrowing import narrowed, planned_space, without_flash
from autotune.space.bind import bind
from autotune.space.definition import load_definition
from autotune.space.sharding.sharding import engine_name, sharding_of
from tests.unit.builders import (
    GIB,
    make_candidate,
    make_estimate,
    make_facts,
    make_job,
    make_space,
    shipped,
)


def planned(job, facts, estimate_of):
    """The choices of a job whose estimates are a function of the candidate."""
    space = make_space(job, facts)
    pairs = [(candidate, estimate_of(candidate)) for candidate in space.candidates]
    return space, choices(space, pairs, job.devices.total)


def risky(reserved, speed, p_oom):
    return replace(make_estimate(reserved, speed), p_oom=p_oom, fits=p_oom < 0.5)


def by_rows(candidate):
    """The more rows, the faster, and the more memory; padding-free is faster still."""
    rows = candidate.micro_batch
    speed = 100.0 * rows * (2 if candidate["gradient_checkpointing"] else 3)
    speed *= 1.1 if candidate["padding_free"] else 1
    return risky(rows * GIB, speed, 0.01 if rows <= 4 else 0.3 if rows == 8 else 1.0)


def test_a_choice_is_a_batch_and_whether_it_is_checkpointed_and_the_best_of_the_rest():
    space, folded = planned(make_job(global_batch_size=16), make_facts("cuda"), by_rows)
    seen = [(c.candidate.micro_batch, c.candidate["gradient_checkpointing"]) for c in folded]
    assert len(seen) == len(set(seen)) == 10  # 1, 2, 4, 8 and 16 rows
    assert sum(choice.folded for choice in folded) == len(space.candidates)
    assert all(c.candidate["padding_free"] for c in folded if 1 < c.candidate.micro_batch < 16)


def test_of_those_as_fast_the_one_that_was_traced_and_is_plainest_stands_for_a_choice():
    def estimate_of(candidate):
        estimate = risky(GIB, 100.0 + 0.1 * bool(candidate["dataloader_num_workers"]), 0.0)
        if candidate["activation_offloading"]:  # leaner, but not traced as it is
            return replace(estimate, method="adjusted trace", peak_memory_bytes=GIB // 2)
        return estimate

    space, folded = planned(make_job(global_batch_size=16), make_facts("cuda"), estimate_of)
    for choice in folded:
        assert not choice.candidate["activation_offloading"]
        assert not choice.candidate["dataloader_num_workers"]
    assert folded[0].candidate.differences(space.default()).keys() <= {
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "gradient_checkpointing",
    }


def test_what_is_safe_comes_first_though_what_may_fit_is_faster():
    _, folded = planned(make_job(global_batch_size=16), make_facts("cuda"), by_rows)
    assert folded[0].candidate.micro_batch == 4 and folded[0].safe
    order = [choice.candidate.micro_batch for choice in folded]
    assert order[6:8] == [8, 8] and order[8:] == [16, 16]
    assert [choice.safe for choice in folded] == [True] * 6 + [False] * 4


def test_safe_means_the_hosts_memory_too():
    assert is_safe(risky(GIB, 1.0, SAFE))
    assert not is_safe(risky(GIB, 1.0, SAFE + 0.01))
    assert not is_safe(replace(risky(GIB, 1.0, 0.0), p_host_oom=0.2))


def test_the_answer_says_what_would_be_faster_and_what_is_next():
    job, facts = make_job(global_batch_size=16), make_facts("cuda")
    _, folded = planned(job, facts, by_rows)
    answer = answer_of(folded, job, facts)
    assert answer.choice is folded[0] and answer.next_best is folded[1]
    assert answer.faster.candidate.micro_batch == 16


def test_memory_is_the_limit_where_what_is_faster_is_folded_into_something_slower():
    def folded_away(candidate):
        """Padding-free is faster and not safe; the rest of its choice is slow."""
        free = candidate["padding_free"]
        return risky(60 * GIB if free else GIB, 150.0 if free else 100.0, 1.0 if free else 0.0)

    job, facts = make_job(global_batch_size=4), make_facts("cuda")
    _, folded = planned(job, facts, folded_away)
    assert all(choice.safe for choice in folded)
    faster = answer_of(folded, job, facts).faster
    assert faster.candidate["padding_free"] and faster.estimate.tokens_per_s == 150.0


def test_memory_is_no_limit_where_nothing_is_clearly_faster():
    job, facts = make_job(global_batch_size=16), make_facts("cuda")
    _, folded = planned(job, facts, lambda c: replace(by_rows(c), tokens_per_s=100.0))
    assert answer_of(folded, job, facts).faster is None


def test_without_speeds_the_fewest_safe_micro_steps_without_offloading_are_the_answer():
    def unknown(candidate):
        offloaded = candidate["activation_offloading"]
        estimate = by_rows(candidate) if not offloaded else risky(GIB // 2, 1.0, 0.0)
        return replace(estimate, tokens_per_s=None)

    job, facts = make_job(global_batch_size=16), make_facts("cuda")
    _, folded = planned(job, facts, unknown)
    answer = answer_of(folded, job, facts)
    assert answer.choice.candidate.micro_batch == 4 and answer.choice.safe
    assert not answer.choice.candidate["activation_offloading"]
    assert (answer.faster, answer.epoch_s) == (None, None)
    assert [c.candidate.micro_batch for c in folded if c.safe][:6] == [4, 4, 2, 2, 1, 1]
    _, none_safe = planned(job, facts, lambda c: replace(unknown(c), p_oom=0.2, fits=True))
    assert none_safe[0].candidate.micro_batch == 1, "then the least memory is the likeliest to fit"


def test_where_nothing_fits_there_is_no_answer():
    job, facts = make_job(), make_facts("cuda")
    _, folded = planned(job, facts, lambda c: risky(c.micro_batch * GIB, 1.0, 1.0))
    assert answer_of(folded, job, facts) is None


def test_every_sharding_keeps_its_best_where_choices_are_left_out():
    job = make_job(devices={"kind": "cuda", "count": 4}, global_batch_size=32)
    _, folded = planned(job, make_facts("cuda"), by_rows)
    shown = shortened(folded, 20, 4)
    names = [
        {engine_name(sharding_of(c.candidate.values, 4)) for c in some} for some in (folded, shown)
    ]
    assert len(shown) == 20 < len(folded) and names[0] == names[1]
    assert shown == [choice for choice in folded if choice in shown]


def test_an_epoch_is_as_many_steps_as_the_rows_make():
    job, facts = make_job(global_batch_size=16), make_facts("cuda", rows=5001)
    space = make_space(job, facts)
    estimate = replace(make_estimate(GIB, 1000.0), step_time_s=2.0)
    assert training_s(job, facts, space.default(), estimate) == (2 * 313, 3 * 2 * 313)
    short = job.model_copy(update={"training": {"max_steps": 10, "num_train_epochs": 3}})
    assert training_s(short, facts, space.default(), estimate) == (2 * 313, 20)


def test_only_weights_whose_type_nobody_chose_are_compared_with_another():
    candidate = make_space(make_job(), make_facts("cuda")).default()
    assert in_other_dtype(make_job(), candidate)["dtype"] == "bfloat16"
    assert in_other_dtype(make_job(recipe={"dtype": ["float32"]}), candidate) is None
    lora = make_candidate(dtype="bfloat16")
    assert in_other_dtype(make_job(tuning="lora"), lora)["dtype"] == "float32"
    assert in_other_dtype(make_job(tuning="lora", fixed={"dtype": "bfloat16"}), lora) is None


def test_deepspeed_computes_in_the_precision_of_the_job_whatever_weights_are_loaded_as():
    job = make_job(devices={"count": 2})
    spread = {"distributed_type": "DEEPSPEED", "zero_stage": 2}
    assert in_other_dtype(job, make_candidate(**spread)) is None
    assert in_other_dtype(job, make_candidate(distributed_type="FSDP"))["dtype"] == "bfloat16"


def test_of_choices_as_fast_what_stays_on_the_device_comes_before_what_is_offloaded():
    job = make_job(devices={"count": 2})
    space = make_space(make_job(), make_facts("cuda"))
    spread = {"distributed_type": "DEEPSPEED", "zero_stage": 3}
    kept = make_candidate(**spread, offload_optimizer_device="none")
    offloaded = make_candidate(**spread, offload_optimizer_device="cpu")
    for faster, first in ((1.005, kept), (1.05, offloaded)):
        pairs = [
            (offloaded, risky(GIB, 100.0 * faster, 0.0)),
            (kept, risky(2 * GIB, 100.0, 0.0)),
        ]
        assert choices(space, pairs, job.devices.total)[0].candidate == first


# -- what a plan leaves out


def values_of(job, facts):
    space = bind(narrowed(shipped(), job, facts), job, facts)
    return {knob.name: knob.values for knob in space.knobs}


def test_values_that_no_estimate_prefers_do_not_multiply_a_plan():
    values = values_of(make_job(), make_facts("cuda"))
    assert values["dataloader_num_workers"] == (0,)
    assert values["optim"] == ("adamw_torch_fused",)
    assert "eager" not in values["attn_implementation"]
    assert values["train_sampling_strategy"] == ("random", "group_by_length")


def test_rows_of_one_length_need_no_grouping():
    facts = make_facts("cuda", longest=1000)
    even = replace(facts, data=replace(facts.data, quantiles={"p1": 1000, "p50": 1000}))
    assert values_of(make_job(), even)["train_sampling_strategy"] == ("random",)


FOREACH = "adamw_torch"


# -- which of the kernels of attention is planned


def flash_space(job, facts):
    """(kernel of attention, whether rows are flattened, rows: one or more) of a narrowed space."""
    facts = replace(facts, data=replace(facts.data, quantiles={"p1": 30, "p50": 250}))
    space = planned_space(shipped(), job, facts)
    return {
        (one["attn_implementation"], one["padding_free"], min(one.micro_batch, 2))
        for one in space.candidates
    }


def test_with_flash_attention_rows_of_many_lengths_are_flattened():
    facts = make_facts("cuda", installed=True)
    assert flash_space(make_job(), facts) == {
        ("flash_attention_2", True, 1),
        ("flash_attention_2", True, 2),
    }


def test_where_rows_cannot_be_flattened_flash_attention_takes_them_padded():
    job = make_job(max_length=100)  # some rows are longer, and would not be cut
    assert flash_space(job, make_facts("cuda", installed=True)) == {
        ("flash_attention_2", False, 1),
        ("flash_attention_2", False, 2),
    }


def test_a_single_row_does_without_flash_attention_unless_somebody_chose_it():
    facts = make_facts("cuda", installed=True)
    space = bind(narrowed(shipped(), make_job(), facts), make_job(), facts)
    flash = [c for c in space.candidates if str(c["attn_implementation"]).startswith("flash")]
    single = next(c for c in flash if c.micro_batch == 1 and c["padding_free"])
    plain = without_flash(single, space)
    assert plain in space.candidates and plain["attn_implementation"] == "sdpa"
    assert without_flash(plain, space) is None
    assert without_flash(next(c for c in flash if c.micro_batch > 1), space) is None
    pinned = make_job(fixed={"attn_implementation": "flash_attention_2"})
    assert without_flash(single, bind(shipped(), pinned, facts)) is None


def test_a_kernel_that_somebody_chose_stays():
    pinned = make_job(fixed={"attn_implementation": "sdpa"})
    kinds = {kind for kind, *_ in flash_space(pinned, make_facts("cuda", installed=True))}
    assert kinds == {"sdpa"}
    without = {kind for kind, *_ in flash_space(make_job(), make_facts("cuda"))}
    assert without == {"sdpa"}


def test_liger_is_planned_where_its_kernels_are_in_the_estimate():
    facts = make_facts("cuda", installed=True)
    known = facts.model.model_type in LIGER_MODELS and facts.stack.fused_head
    assert values_of(make_job(), facts)["use_liger_kernel"] == (
        (False, True) if known else (False,)
    )
    other = replace(facts, model=replace(facts.model, model_type="gemma3_text"))
    assert values_of(make_job(), other)["use_liger_kernel"] == (False,)
    assert values_of(make_job(), make_facts("cuda"))["use_liger_kernel"] == (False,)


# -- whether the reference is computed beforehand


def precomputed(**changes):
    """The values of `precompute_ref_log_probs` in a narrowed space of DPO."""
    job, facts = make_job(method="dpo", **changes), make_facts("cuda")
    space = planned_space(load_definition("dpo"), job, facts)
    return {one["precompute_ref_log_probs"] for one in space.candidates}


def test_the_reference_is_computed_beforehand_unless_somebody_chose_or_it_is_more_work():
    assert precomputed() == {True}
    assert precomputed(fixed={"precompute_ref_log_probs": False}) == {False}
    assert precomputed(recipe={"precompute_ref_log_probs": [False, True]}) == {False, True}
    assert precomputed(training={"max_steps": 3}) == {False, True}  # a part of the data
