"""Bound spaces: the enumeration against a plain filter over the full product."""

from dataclasses import replace
from itertools import product
from math import prod

import pytest

from autotune.errors import UserError
from autotune.space.attention import attention_rules
from autotune.space.bind import bind, space_facts
from autotune.space.definition import load_definition
from autotune.space.job_shape import JobShape
from autotune.space.knobs import MICRO_BATCH, from_knobs
from tests.unit.builders import make_facts, make_job, make_space, shipped

LORA = {"lora_r": [8, 16], "lora_target_modules": ["attention", ["q_proj", "lm_head"]]}
SMALL = {"gradient_checkpointing": False, "optim": "adamw_torch"}
CASES = {
    "cpu": (make_job(), make_facts()),
    "cuda": (make_job(global_batch_size=8, fixed=SMALL), make_facts("cuda", installed=True)),
    "cuda without kernels": (make_job(global_batch_size=8), make_facts("cuda")),
    "fp32": (
        make_job(global_batch_size=4, precision="fp32", fixed=SMALL),
        make_facts("cuda", installed=True),
    ),
    "old gpu": (
        make_job(global_batch_size=4, fixed=SMALL, recipe={"dtype": ["float16", "float32"]}),
        make_facts("cuda", capability=(7, 5), installed=True),
    ),
    "lora": (make_job(tuning="lora", recipe=LORA, global_batch_size=6), make_facts()),
    "qlora": (
        make_job(
            tuning="qlora",
            recipe={**LORA, "load_in_8bit": [False, True]},
            fixed=SMALL,
            global_batch_size=6,
        ),
        make_facts(),
    ),
    "packing": (make_job(recipe={"packing": [False, True]}, max_length=None), make_facts()),
    "long rows": (make_job(recipe={"max_length": [512, 2000, None]}), make_facts(longest=1500)),
    "sampled": (make_job(recipe={"max_length": [512, None]}), make_facts(sampled=True)),
    "few rows": (make_job(), make_facts(rows=3)),
    "tokens": (
        make_job(global_batch_size="12288 tokens", recipe={"max_length": [1024, 512, 3072]}),
        make_facts(),
    ),
    "batches": (make_job(recipe={"global_batch_size": [16, 6, 1]}, fixed=SMALL), make_facts()),
    "pinned": (make_job(fixed={"gradient_accumulation_steps": 4, **SMALL}), make_facts()),
}


@pytest.fixture(params=CASES.values(), ids=CASES.keys())
def case(request):
    return request.param


def every_combination(job, facts):
    """The product of the values asked for, before any rule."""
    machine_facts = space_facts(JobShape.of(job), facts)
    axes = {}
    for knob in shipped().knobs:
        allowed_bytes = [(n, v if isinstance(v, list) else [v]) for n, v in knob.only_if.items()]
        if any(machine_facts[name] not in values for name, values in allowed_bytes):
            continue
        values = knob.values[facts.device.kind] if isinstance(knob.values, dict) else knob.values
        if knob.name == MICRO_BATCH:
            lengths = job.recipe.get("max_length", [job.max_length])
            sizes = {job.with_batch(b).batch_sequences(n) for b in job.batches for n in lengths}
            values = sorted({d for size in sizes for d in range(1, size + 1) if size % d == 0})
        elif knob.name == "max_length":
            values = [job.max_length]
        elif knob.name == "global_batch_size":
            values = [job.global_batch_size]
        elif knob.name == "train_sampling_strategy":
            values = ["random", "group_by_length"]  # rows differ in length here
        elif knob.name == "torch_compile":
            values = [False]  # for the same reason
        elif knob.name == "expandable_segments":
            values = [facts.device.kind == "cuda"]
        elif knob.name == "dtype":
            values = ["float32"]  # no checkpoint says another one here
        if knob.name in job.fixed:
            values = [job.fixed[knob.name]]
        elif knob.name in job.recipe:
            values = job.recipe[knob.name]
        elif knob.kind == "recipe" and not isinstance(knob.values, str):
            values = [knob.default]
        axes[knob.name] = values
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def test_the_candidates_are_the_product_less_what_rules_forbid(case):
    job, facts = case
    rules = (*shipped().rules, *attention_rules(job, facts))
    machine_facts = space_facts(JobShape.of(job), facts)
    expected = []
    for values in every_combination(job, facts):
        job_of_batch = job.with_batch(values["global_batch_size"])
        sequences = job_of_batch.batch_sequences(values["max_length"])
        count, remainder = divmod(sequences, values[MICRO_BATCH])
        pinned = job.fixed.get("gradient_accumulation_steps", count)
        if (
            remainder
            or count != pinned
            or any(rule.excludes(machine_facts | values) for rule in rules)
        ):
            continue
        expected.append({**values, "gradient_accumulation_steps": count})
    assert [candidate.knobs for candidate in make_space(job, facts).candidates] == expected
    assert expected


def test_grouping_by_length_is_searched_where_rows_differ_in_length():
    def searched(job, facts):
        return {c["train_sampling_strategy"] for c in make_space(job, facts).candidates}

    one_length = make_facts(longest=20)  # as long as the shortest of make_facts
    assert searched(make_job(), make_facts()) == {"random", "group_by_length"}
    assert searched(make_job(), one_length) == {"random"}
    pinned = make_job(fixed={"train_sampling_strategy": "group_by_length"})
    assert searched(pinned, one_length) == {"group_by_length"}


def test_segments_grow_where_rows_differ_in_length_and_nobody_pins_it():
    def searched(job, facts):
        return {c["expandable_segments"] for c in make_space(job, facts).candidates}

    gpu, pinned = make_facts("cuda"), make_job(fixed={"expandable_segments": False})
    device = replace(gpu.device, maker="AMD")
    assert any("expandable_segments:True" in note for note in make_space(make_job(), gpu).notes)
    assert not make_space(pinned, gpu).notes
    assert searched(make_job(), gpu) == {True}
    assert searched(make_job(), make_facts()) == searched(pinned, gpu) == {False}
    assert searched(make_job(), make_facts("cuda", longest=20)) == {False, True}  # of one length
    assert searched(make_job(), replace(gpu, device=device)) == {False}


def test_every_combination_is_a_candidate_or_counted_as_excluded(case):
    job, facts = case
    space = make_space(job, facts)
    excluded_count = sum(exclusion.count for exclusion in space.exclusions)
    assert len(space.candidates) + excluded_count == len(every_combination(job, facts))
    assert all(exclusion.count > 0 and exclusion.reason for exclusion in space.exclusions)


def test_the_global_batch_is_exact_for_every_candidate(case):
    job, facts = case
    for candidate in make_space(job, facts).candidates:
        sequences = candidate.micro_batch * candidate.gradient_accumulation_steps
        job_of_batch = job.with_batch(candidate["global_batch_size"])
        assert sequences == job_of_batch.batch_sequences(candidate["max_length"])


def test_candidates_are_distinct_stable_and_come_back_from_their_record(case):
    space, second_space = make_space(*case), make_space(*case)
    assert space == second_space
    assert len({candidate.key for candidate in space.candidates}) == len(space.candidates)
    assert all(from_knobs(candidate.knobs) == candidate for candidate in space.candidates)


def test_free_knobs_have_several_values_that_occur(case):
    space = make_space(*case)
    for knob in space.knobs:
        assert len(knob.values) >= 1
        assert (len(knob.values) > 1) == (knob in space.free_knobs)
        for value in knob.values:
            assert any(candidate[knob.name] == value for candidate in space.candidates)


def test_recipe_knobs_keep_their_default_unless_the_job_lists_them():
    space = make_space(make_job(tuning="lora"))
    fixed = {knob.name: knob.values for knob in space.knobs if knob.kind == "recipe"}
    assert fixed == {
        "global_batch_size": (16,),
        "max_length": (1024,),
        "packing": (False,),
        "dtype": ("float32",),
        "lora_r": (16,),
        "lora_target_modules": ("all-linear",),
    }
    space_with_list = make_space(make_job(recipe={"dtype": ["bfloat16"]}))
    assert {candidate["dtype"] for candidate in space_with_list.candidates} == {"bfloat16"}


def test_a_full_job_has_no_lora_knobs():
    names = {knob.name for knob in make_space(make_job()).knobs}
    assert not names & {"lora_r", "lora_target_modules"}


@pytest.mark.parametrize(
    ("knob", "value"),
    [("loss_type", "dft"), ("optim", "adafactor"), (MICRO_BATCH, 2), ("torch_compile", True)],
)
def test_a_pin_holds_for_every_candidate(knob, value):
    space = make_space(make_job(fixed={knob: value}))
    assert {candidate[knob] for candidate in space.candidates} == {value}
    assert prod(len(free_knob.values) for free_knob in space.free_knobs) > 1


def test_the_default_is_what_the_stack_does_when_nobody_chooses():
    default = make_space(make_job()).default()
    assert default.micro_batch == 8
    assert default["gradient_checkpointing"] is True
    assert default["loss_type"] == "chunked_nll"
    assert make_space(make_job(global_batch_size=9)).default().micro_batch == 9


def test_with_a_fused_head_the_plain_loss_is_the_only_one_and_the_default():
    facts = make_facts()
    fused = replace(facts, stack=replace(facts.stack, fused_head=True))
    space = make_space(make_job(), fused)
    assert {candidate["loss_type"] for candidate in space.candidates} == {"nll"}
    (knob,) = [knob_of_space for knob_of_space in space.knobs if knob_of_space.name == "loss_type"]
    assert (knob.values, knob.default) == (("nll",), "nll")
    assert space.default()["loss_type"] == "nll"
    with pytest.raises(UserError, match="only its old name"):
        make_space(make_job(fixed={"loss_type": "chunked_nll"}), fused)


@pytest.mark.parametrize("method", ["sft", "dpo", "kto", "grpo", "rloo"])
def test_a_fused_head_takes_no_adapter(method):
    facts = make_facts()
    job = make_job(method=method, tuning="lora", recipe={"lora_target_modules": [["lm_head"]]})
    assert bind(load_definition(method), job, facts).candidates
    fused = replace(facts, stack=replace(facts.stack, fused_head=True))
    with pytest.raises(UserError, match="refuses an adapter on lm_head"):
        bind(load_definition(method), job, fused)


def test_what_the_device_does_not_compute_in_is_refused_by_its_name():
    job = make_job(training={"tf32": True, "bf16_full_eval": True, "ddp_backend": "nccl"})
    assert make_space(job, make_facts("cuda")).candidates
    with pytest.raises(UserError) as refused:
        make_space(job, make_facts("cuda", capability=(7, 5)))
    assert [p.where for p in refused.value.problems] == [
        "training: tf32",
        "training: bf16_full_eval",
    ]
    with pytest.raises(UserError, match="does not compute in TF32"):
        make_space(job, make_facts("cpu"))


def test_nothing_feasible_is_a_users_error_with_the_reasons():
    pinned = {"padding_free": True, "train_sampling_strategy": "group_by_length"}
    with pytest.raises(UserError, match="no padding left that grouping"):
        make_space(make_job(fixed=pinned))
    pins = {MICRO_BATCH: 4, "gradient_accumulation_steps": 8}
    with pytest.raises(UserError, match="is pinned to 8"):
        make_space(make_job(fixed=pins))


def test_a_batch_that_cannot_be_exact_is_a_users_error_with_the_nearest_values():
    with pytest.raises(UserError, match="the nearest are `9000 tokens` or `10000 tokens`"):
        make_space(make_job(global_batch_size="9500 tokens", max_length=1000))
    with pytest.raises(UserError, match="the nearest possible values are 2 or 4"):
        make_space(make_job(fixed={MICRO_BATCH: 3}))


def test_a_choice_of_what_is_learned_that_the_model_has_no_place_for_is_refused():
    job = make_job(tuning="lora", recipe={"lora_target_parameters": ["experts"]})
    with pytest.raises(UserError, match=r"needs `model\.experts: true`"):
        make_space(job)
