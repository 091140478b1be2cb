"""Which candidates are of the same variant of the program."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.estimate.variant import (
    OUTSIDE_THE_VARIANT,
    SAME_STATE,
    UNTRACEABLE,
    liger_is_traced,
    optimizer_config,
    traced_config,
    traced_optimizer,
    unique,
    variant_of,
)
from autotune.training.batch_plan import Batching, batching_of

CONFIG = {
    "learning_rate": 2e-5,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "max_length": 512,
    "bf16": True,
    "dtype": "float32",
    "attn_implementation": "sdpa",
    "loss_type": "nll",
    "gradient_checkpointing": False,
    "optim": "adamw_torch_fused",
}
VALUES = st.one_of(st.integers(), st.booleans(), st.sampled_from(["", "a", "none"]))
NAMES = st.sampled_from([*sorted(OUTSIDE_THE_VARIANT), *CONFIG, "another knob"])


def key(**changes):
    return traced_config({**CONFIG, **changes}).key


@given(st.dictionaries(st.sampled_from(sorted(OUTSIDE_THE_VARIANT)), VALUES))
def test_what_only_changes_a_number_does_not_change_the_path(changes):
    assert key(**changes) == key()


@pytest.mark.parametrize(
    "changes",
    [
        {"max_length": 513},
        {"bf16": False},
        {"dtype": "bfloat16"},
        {"attn_implementation": "eager"},
        {"loss_type": "chunked_nll"},
        {"gradient_checkpointing": True},
        {"gradient_checkpointing_kwargs": {"use_reentrant": False}},
        {"optim": "adafactor"},
        {"padding_free": True},
        {"packing": True},
        {"use_peft": True},
        {"lora_r": 8},
        {"a knob of a later version": 1},
    ],
    ids=str,
)
def test_what_may_change_the_program_changes_the_path(changes):
    assert key(**changes) != key()


def test_the_order_of_settings_does_not_matter():
    assert traced_config(dict(reversed(CONFIG.items()))).key == traced_config(CONFIG).key


@given(st.dictionaries(NAMES, VALUES))
def test_a_path_holds_nothing_but_what_the_configuration_says(config):
    variant = variant_of(config)
    assert variant.items() <= config.items()
    assert set(config) - set(variant) <= OUTSIDE_THE_VARIANT


# -- what cannot be traced


OF_VALUES = {"cp_size", "sp_size", "experts_implementation", "attn_implementation"}
"""Knobs of which some values are traced in the place of others."""
SWITCHES = [name for name in UNTRACEABLE if name not in OF_VALUES]


@pytest.mark.parametrize("knob", SWITCHES)
def test_a_knob_that_cannot_be_traced_is_replaced_and_told(knob):
    traced = traced_config({**CONFIG, knob: True})
    assert traced.replaced == (knob,)
    assert traced.config[knob] == UNTRACEABLE[knob][0]
    off = traced_config({**CONFIG, knob: False})
    assert off.replaced == ()
    assert off.key == traced.key


@pytest.mark.parametrize("value", [None, False])
def test_a_knob_that_is_off_is_not_replaced(value):
    config = {**CONFIG, **dict.fromkeys(SWITCHES, value)}
    assert traced_config(config).replaced == ()
    assert traced_config(config).config == config
    assert traced_config(CONFIG).config == CONFIG


def test_all_knobs_that_cannot_be_traced_are_told_together():
    changes = {
        **dict.fromkeys(SWITCHES, True),
        **{"cp_size": 2, "sp_size": 2, "attn_implementation": "kernels-community/flash-attn3"},
        "model_init_kwargs": {"experts_implementation": "eager"},
    }
    traced = traced_config({**CONFIG, **changes})
    assert set(traced.replaced) == set(UNTRACEABLE)
    assert traced.config["attn_implementation"] == "flash_attention_3"
    assert (traced.config["cp_size"], traced.config["model_init_kwargs"]) == (1, None)


# -- optimizers


def test_optimizers_of_the_same_state_share_a_path():
    first, *same_state = SAME_STATE
    assert traced_optimizer({**CONFIG, "optim": first}) == ({**CONFIG, "optim": first}, None)
    for optim in same_state:
        variant, own_optim = traced_optimizer({**CONFIG, "optim": optim})
        assert (variant, own_optim) == ({**CONFIG, "optim": first}, optim)
    assert traced_optimizer({**CONFIG, "optim": "sgd"}) == ({**CONFIG, "optim": "sgd"}, None)
    assert traced_optimizer({}) == ({}, None)


# -- batching


def test_the_batching_of_a_configuration_is_that_of_a_probe():
    config = {
        **CONFIG,
        "packing": True,
        "packing_strategy": "wrapped",
        "truncation_mode": "keep_end",
        "train_sampling_strategy": "group_by_length",
        "pad_to_multiple_of": 8,
    }
    assert batching_of("sft", config, global_batch=16, seed=3) == Batching(
        method="sft",
        micro_batch=4,
        global_batch=16,
        max_length=512,
        padding_free=False,
        packing=True,
        packing_strategy="wrapped",
        keep_end=True,
        grouped=True,
        pad_to_multiple_of=8,
        seed=3,
    )
    sizes = {"per_device_train_batch_size": 2}
    plain = batching_of("sft", sizes, global_batch=4, seed=0)
    auto = {**sizes, "pad_to_multiple_of": "auto"}
    assert batching_of("sft", auto, global_batch=4, seed=0) == plain
    assert (plain.max_length, plain.flat, plain.grouped, plain.keep_end) == (None,) + (False,) * 3


# -- equal values once


@given(
    st.lists(st.dictionaries(st.sampled_from("abc"), st.one_of(st.none(), st.integers(0, 2)))),
)
def test_equal_values_are_kept_once_and_found_again(values):
    distinct, places = unique(values)
    assert [distinct[place] for place in places] == values
    texts = [json.dumps(value, sort_keys=True) for value in distinct]
    assert len(set(texts)) == len(texts)
    firsts = [places.index(number) for number in range(len(distinct))]
    assert firsts == sorted(firsts)


def test_values_that_say_the_same_in_another_order_are_equal():
    assert unique([{"a": 1, "b": 2}, {"b": 2, "a": 1}]) == ([{"a": 1, "b": 2}], [0, 0])


def test_the_optimizers_own_step_is_one_for_all_paths_that_train_the_same_weights():
    variants = [
        {"loss_type": "chunked_nll", "padding_free": True},
        {"activation_checkpointing": True, "activation_checkpointing_kwargs": {"x": 1}},
        {},
    ]
    configs = [
        variant_of(optimizer_config({**CONFIG, **variant}, "adamw_torch")) for variant in variants
    ]
    assert configs[0] == configs[1] == configs[2]
    assert configs[0]["optim"] == "adamw_torch"
    for name, value in (("bf16", False), ("lora_r", 8), ("dtype", "bfloat16")):
        assert variant_of(optimizer_config({**CONFIG, name: value}, "adamw_torch")) != configs[0]


@pytest.mark.parametrize(
    ("method", "model", "fused_head", "traced"),
    [
        ("sft", "llama", True, True),
        ("sft", "llama", False, False),  # before TRL 1.15 the loss is Liger's, too
        ("dpo", "qwen3", True, True),
        ("sft", "gemma2", True, False),
        ("grpo", "llama", True, False),
    ],
)
def test_liger_is_traced_where_its_kernels_are_known(method, model, fused_head, traced):
    assert liger_is_traced(method, model, fused_head=fused_head) is traced
    config = traced_config({**CONFIG, "use_liger_kernel": True}, liger=traced)
    assert config.config["use_liger_kernel"] is traced
    assert config.replaced == (() if traced else ("use_liger_kernel",))


def test_the_optimizers_own_step_keeps_the_attention_some_architectures_have_no_sdpa():
    step_config = optimizer_config({**CONFIG, "attn_implementation": "eager"}, "adamw_torch")
    assert step_config["attn_implementation"] == "eager"
