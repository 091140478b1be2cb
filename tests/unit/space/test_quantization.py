"""Quantised bases: what a job lacks for one, and what a base takes by formula."""

from dataclasses import replace

import pytest

from autotune.estimate.formula.closed_form import Dimensions, parts_by_formula
from autotune.estimate.records.events import WEIGHTS
from autotune.space.quantization import (
    base_bytes,
    bits_of,
    divides_base,
    loading_note,
    not_installed,
    quantization,
    unquantised_note,
)
from autotune.space.sharding.sharding import Sharding
from tests.unit.builders import make_facts, make_job

SIZE = Dimensions(
    parameters=7_000_000_000,
    trained=40_000_000,
    layers=28,
    hidden=3584,
    heads=28,
    vocabulary=152_000,
    tokens=1024,
    length=1024,
)


def test_only_a_quantised_base_needs_a_package():
    bare, installed = make_facts(), make_facts(installed=True)
    assert not_installed(make_job(tuning="lora"), bare) is None
    assert not_installed(make_job(tuning="qlora"), installed) is None
    sentence = not_installed(make_job(tuning="qlora"), bare)
    assert sentence == "`tuning: qlora` needs the package bitsandbytes, which is not installed here"


@pytest.mark.parametrize(
    ("fields", "bits", "low", "high"),
    [
        ({}, None, 13.9e9, 14.1e9),
        ({"load_in_8bit": True}, 8, 8e9, 9.5e9),
        ({"load_in_4bit": True}, 4, 5e9, 6e9),
        ({"load_in_4bit": True, "load_in_8bit": False}, 4, 5e9, 6e9),
    ],
)
def test_by_formula_all_but_the_embeddings_is_packed(fields, bits, low, high):
    config = {"dtype": "bfloat16", **fields}
    assert bits_of(config) == bits
    assert low < parts_by_formula(config, SIZE)[WEIGHTS] < high


def test_by_formula_reward_and_value_model_stay_whole():
    config = {"dtype": "bfloat16", "load_in_4bit": True}
    judged = replace(SIZE, parameters=3 * SIZE.parameters, judges=2 * SIZE.parameters)
    policy_weights, all_weights = (
        parts_by_formula(config, size)[WEIGHTS] for size in (SIZE, judged)
    )
    assert all_weights - policy_weights == 2 * (2 * SIZE.parameters)


def mixture(**changes):
    """Facts of a mixture whose experts are one parameter of three dimensions."""
    facts = make_facts("cuda")
    unquantised = {"embed_tokens": 10, "experts.down_proj": 300, "experts.gate_up_proj": 600}
    model = replace(facts.model, parameters=1000, **{"unquantised": unquantised, **changes})
    return replace(facts, model=model)


def test_a_plan_says_which_weights_a_quantised_base_keeps_whole():
    note = unquantised_note(make_job(tuning="qlora"), mixture(), [{"dtype": "bfloat16"}])
    assert note is not None
    assert "leaves 91% of the weights in bfloat16, 1.78 KiB" in note
    assert "experts.gate_up_proj 1.17 KiB, experts.down_proj 600 B;" in note
    wide = unquantised_note(make_job(tuning="qlora"), mixture(), [{"dtype": "float32"}])
    assert wide is not None and "in float32, 3.55 KiB" in wide


DIVIDED = {"DEEPSPEED": Sharding(distributed_type="DEEPSPEED", zero_stage=3, num_processes=2)}
DIVIDED["FSDP"] = Sharding(distributed_type="FSDP", num_processes=2)
COPIES = Sharding(distributed_type="MULTI_GPU", num_processes=2)


@pytest.mark.parametrize("kind", DIVIDED)
def test_packed_weights_that_are_divided_are_stored_in_the_trained_type(kind):
    job = make_job(tuning="qlora")
    assert "bnb_4bit_quant_storage" not in quantization(job, {"dtype": "bfloat16"}, COPIES)
    fields = quantization(job, {"dtype": "bfloat16"}, DIVIDED[kind])
    assert fields["bnb_4bit_quant_storage"] == "bfloat16"
    assert quantization(job, {}, DIVIDED[kind])["bnb_4bit_quant_storage"] == "float32"


def test_what_an_engine_does_not_divide_has_whole_copies():
    assert divides_base(make_job()) and divides_base(make_job(tuning="qlora"))
    assert not divides_base(make_job(tuning="qlora", fixed={"load_in_8bit": True}))
    assert not divides_base(make_job(tuning="qlora", recipe={"load_in_8bit": [False, True]}))
    assert not divides_base(make_job(tuning="qlora", method="grpo", max_length=None))


def test_each_device_first_holds_the_whole_base():
    model = replace(mixture().model, parameters=16_384 * 64, unquantised={"head": 0})
    config = {"load_in_4bit": True, "use_bnb_nested_quant": True, "dtype": "bfloat16"}
    packed = 16_384 * 32 + 16_384 + 4 * 64
    assert base_bytes(model, config) == packed
    eight = {"load_in_8bit": True, "dtype": "bfloat16"}
    assert base_bytes(model, eight) == 16_384 * 64
    assert base_bytes(model, {"dtype": "bfloat16"}) is None
    note = loading_note(make_job(tuning="qlora"), mixture(), [{"distributed_type": "FSDP"}])
    assert note is not None and "whole on each device, 1.82 KiB" in note
    assert loading_note(make_job(tuning="lora"), mixture(), [{"distributed_type": "FSDP"}]) is None


def test_nothing_is_said_of_embeddings_or_without_quantisation():
    embeddings = mixture(unquantised={"embed_tokens": 200})
    assert unquantised_note(make_job(tuning="qlora"), embeddings, [{}]) is None
    assert unquantised_note(make_job(tuning="lora"), mixture(), [{}]) is None


def test_by_formula_the_experts_of_a_mixture_stay_whole():
    fields = {"load_in_4bit": True, "dtype": "bfloat16"}
    experts_whole = replace(SIZE, unquantised=SIZE.parameters * 9 // 10)
    assert parts_by_formula(fields, experts_whole)[WEIGHTS] > 0.9 * 2 * SIZE.parameters
    assert parts_by_formula(fields, replace(SIZE, unquantised=0))[WEIGHTS] < 0.6 * SIZE.parameters
