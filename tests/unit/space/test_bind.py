"""Bound spaces: the enumeration against a plain filter over the full product."""

from dataclasses import replace
from itertools import product
from math import prod

import pytest

from autotune.errors import UserError
from autotune.space.bind import bind, space_facts
from autotune.space.definition import load_definition, parse_definition
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
    known = space_facts(job, facts)
    axes = {}
    for knob in shipped().knobs:
        allowed = [(n, v if isinstance(v, list) else [v]) for n, v in knob.only_if.items()]
        if any(known[name] not in values for name, values in allowed):
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
        if knob.name in job.fixed:
            values = [job.fixed[knob.name]]
        elif knob.name in job.recipe:
            values = job.recipe[knob.name]
        elif knob.kind == "recipe" and knob.name not in ("max_length", "global_batch_size"):
            values = [knob.default]
        axes[knob.name] = values
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def test_the_candidates_are_the_product_less_what_rules_forbid(case):
    job, facts = case
    rules = shipped().rules
    known = space_facts(job, facts)
    expected = []
    for values in every_combination(job, facts):
        asked = job.with_batch(values["global_batch_size"])
        sequences = asked.batch_sequences(values["max_length"])
        count, rest = divmod(sequences, values[MICRO_BATCH])
        pinned = job.fixed.get("gradient_accumulation_steps", count)
        if rest or count != pinned or any(rule.excludes(known | values) for rule in rules):
            continue
        expected.append({**values, "gradient_accumulation_steps": count})
    assert [candidate.knobs for candidate in make_space(job, facts).candidates] == expected
    assert expected


def test_every_combination_is_a_candidate_or_counted_as_excluded(case):
    job, facts = case
    space = make_space(job, facts)
    excluded = sum(one.count for one in space.exclusions)
    assert len(space.candidates) + excluded == len(every_combination(job, facts))
    assert all(one.count > 0 and one.reason for one in space.exclusions)


def test_the_global_batch_is_exact_for_every_candidate(case):
    job, facts = case
    for candidate in make_space(job, facts).candidates:
        sequences = candidate.micro_batch * candidate.gradient_accumulation_steps
        asked = job.with_batch(candidate["global_batch_size"])
        assert sequences == asked.batch_sequences(candidate["max_length"])


def test_candidates_are_distinct_stable_and_come_back_from_their_record(case):
    space, again = make_space(*case), make_space(*case)
    assert space == again
    assert len({candidate.key for candidate in space.candidates}) == len(space.candidates)
    assert all(from_knobs(one.knobs) == one for one in space.candidates)


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
    listed = make_space(make_job(recipe={"dtype": ["bfloat16"]}))
    assert {candidate["dtype"] for candidate in listed.candidates} == {"bfloat16"}


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
    assert prod(len(one.values) for one in space.free_knobs) > 1


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
    (knob,) = [one for one in space.knobs if one.name == "loss_type"]
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


def test_nothing_feasible_is_a_users_error_with_the_reasons():
    pinned = {"padding_free": True, "train_sampling_strategy": "group_by_length"}
    with pytest.raises(UserError, match="no padding left that grouping"):
        make_space(make_job(fixed=pinned))
    both = {MICRO_BATCH: 4, "gradient_accumulation_steps": 8}
    with pytest.raises(UserError, match="is pinned to 8"):
        make_space(make_job(fixed=both))


def test_a_batch_that_cannot_be_exact_is_a_users_error_with_the_nearest_values():
    with pytest.raises(UserError, match="the nearest are `9000 tokens` or `10000 tokens`"):
        make_space(make_job(global_batch_size="9500 tokens", max_length=1000))
    with pytest.raises(UserError, match="the nearest possible values are 2 or 4"):
        make_space(make_job(fixed={MICRO_BATCH: 3}))


def test_an_own_space_without_a_length_knob_keeps_the_jobs_length():
    text = f"method: sft\nknobs:\n  {MICRO_BATCH}: {{kind: speed, values: [1, 2, 3]}}\n"
    job = make_job(global_batch_size="4096 tokens")
    space = bind(parse_definition(text, "mine"), job, make_facts())
    assert [one.knobs["gradient_accumulation_steps"] for one in space.candidates] == [4, 2]
    assert [(one.reason, one.count) for one in space.exclusions] == [
        ("the micro-batch does not divide the global batch exactly", 1)
    ]


def test_a_recipe_knob_of_an_own_space_keeps_its_default_of_several_values():
    text = f"""method: sft
knobs:
  {MICRO_BATCH}: {{kind: speed, values: [1]}}
  lora_r: {{kind: recipe, values: [8, 16, 32], default: 16}}
  dtype: {{kind: recipe, values: [float32, bfloat16], default: float16}}
"""
    (one,) = bind(parse_definition(text, "mine"), make_job(), make_facts()).candidates
    assert (one["lora_r"], one["dtype"]) == (16, "float32")
