"""A job of flags alone: what is assumed of it, and that it is a job then."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import UserError
from autotune.space.job_file.flags import BATCH, completed
from autotune.space.job_file.load import load_job

MODEL = "model=qwen2.5-7b"


def added(*sets):
    """What is set beside what was given, by name."""
    every, _ = completed([MODEL, *sets])
    return dict(text.partition("=")[::2] for text in every if text not in (MODEL, *sets))


def rows(length):
    return f"{{lengths: {{max: {length}, rows: 10000}}}}"


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        ([], {"dataset": rows(1024), "max_length": "1024", "global_batch_size": "32"}),
        (["max_length=64"], {"dataset": rows(64), "global_batch_size": "32"}),
        (["max_length=none"], {"dataset": rows(1024), "global_batch_size": "32"}),
        (["dataset=./d"], {"max_length": "1024", "global_batch_size": "32"}),
        (["dataset=./d", "max_length=64", "global_batch_size=5"], {}),
        (["method=grpo"], {"dataset": rows(512), "global_batch_size": "32"}),
        (["method=grpo", "max_length=64"], {"dataset": rows(64), "global_batch_size": "32"}),
        (["method=grpo", "num_generations=5"], {"dataset": rows(512), "global_batch_size": "35"}),
        (["method=ppo", "devices.count=3"], {"dataset": rows(512), "global_batch_size": "33"}),
        (
            ["per_device_train_batch_size=24"],
            {"dataset": rows(1024), "max_length": "1024", "global_batch_size": "48"},
        ),
        (
            ["devices.count=3", "dataset=./d", "max_length=8"],
            {"global_batch_size": "33"},
        ),
        (
            ["devices.count=6", "devices.nodes=2", "dataset=./d", "max_length=8"],
            {"global_batch_size": "36"},
        ),
        (
            ["gradient_accumulation_steps=3", "dataset=./d", "max_length=8"],
            {"global_batch_size": "33"},
        ),
        (
            [
                *("gradient_accumulation_steps=2", "per_device_train_batch_size=4"),
                *("dataset=./d", "max_length=8"),
            ],
            {"global_batch_size": "8"},
        ),
    ],
)
def test_what_is_left_open_is_added(sets, expected):
    assert added(*sets) == expected


def test_what_was_assumed_is_said_with_the_flags_that_change_it():
    _, (sentence,) = completed([MODEL])
    for flag in ("--method", "--tuning", "--dataset", "--max-length", "--global-batch-size"):
        assert f"`{flag}" in sentence
    _, (sentence,) = completed([MODEL, "method=sft", "tuning=lora", "dataset=./d"])
    assert sentence.startswith("rows cut at 1024 tokens") and "--dataset" not in sentence
    given_all = [
        MODEL,
        "method=sft",
        "tuning=lora",
        "dataset=./d",
        "max_length=8",
        "global_batch_size=1",
    ]
    assert completed(given_all) == (given_all, ())


def test_a_length_of_prompts_beside_a_given_dataset_is_not_dropped_in_silence():
    every, _ = completed([MODEL, "method=grpo", "dataset=./d", "max_length=64"])
    assert "max_length=64" in every


POSITIVE = st.integers(1, 48)


@given(POSITIVE, st.integers(1, 3), POSITIVE, st.sampled_from(["sft", "dpo", "grpo", "rloo"]))
def test_the_batch_is_a_multiple_of_all_that_is_given_and_no_smaller_than_32(
    devices, nodes, micro_batch, method
):
    sets = [
        *(f"method={method}", f"devices.count={devices}", f"devices.nodes={nodes}"),
        f"per_device_train_batch_size={micro_batch}",
    ]
    batch = int(added(*sets)["global_batch_size"])
    step = devices * nodes * micro_batch
    group = 8 if method in ("grpo", "rloo") else 1
    assert batch >= BATCH and batch % step == 0 == batch % group
    smaller = [n for n in range(BATCH, batch) if n % step == 0 == n % group]
    assert not smaller


@pytest.mark.parametrize(
    "sets",
    [
        *([], ["tuning=lora"], ["method=dpo"], ["method=kto"], ["method=reward"]),
        *(["devices.count=3"], ["devices.count=6"], ["per_device_train_batch_size=3"]),
        ["method=grpo", "reward_funcs=[get_soft_overlong_punishment]", "devices.count=3"],
        ["method=ppo", "devices.count=3"],
    ],
)
def test_what_is_completed_is_a_job(sets):
    try:
        job, _ = load_job(None, completed([MODEL, *sets])[0])
    except UserError as error:
        pytest.fail(str(error))
    assert job.model == "Qwen/Qwen2.5-7B"
    assert job.global_batch_size % job.devices.total == 0
