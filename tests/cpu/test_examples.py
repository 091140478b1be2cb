"""The cases people brought (`examples/`): what is planned of them.

Small stand-ins of them are really run: theirs are the whole runs of `test_run`, `test_preference`,
`test_online` and `test_ppo`.
"""

import json
from typing import Any

import pytest

from tests.cpu.conftest import Command
from tests.cpu.stand_ins import EXAMPLES, SHORT

GIB = 2**30


def plan(autotune: Command, job: str, *arguments: str) -> dict[str, Any]:
    out = autotune("plan", str(EXAMPLES / job), "--json", *arguments)
    plain: dict[str, Any] = json.loads(out)
    return plain


def test_every_example_has_a_stand_in() -> None:
    jobs = {file.parent.name for file in EXAMPLES.glob("*/job.yaml")}
    assert jobs - {"quickstart"} == SHORT.keys()


@pytest.mark.nightly("documents")
def test_memory_grows_with_the_length_of_the_rows(autotune: Command) -> None:
    few = ["--set", "recipe.max_length=[4, 64, 1024]", "--device", "a100-40gb"]
    found = plan(autotune, "sft-memory-by-length/job.yaml", *few)
    peaks = {
        one["knobs"]["max_length"]: one["estimate"]["peak_memory_bytes"]
        for one in found["candidates"]
    }
    assert sorted(peaks) == [4, 64, 1024]
    assert [peaks[n] for n in sorted(peaks)] == sorted(peaks.values())
    assert peaks[1024] > 2 * peaks[4]


@pytest.mark.nightly("documents")
def test_every_way_of_making_up_the_batch_is_there(autotune: Command) -> None:
    one = ["--set", "loss_type=nll", "--set", "gradient_checkpointing=true"]
    found = plan(autotune, "sft-factorisations/job.yaml", "--device", "memory=24GiB", *one)
    products = {
        (one["knobs"]["per_device_train_batch_size"], one["knobs"]["gradient_accumulation_steps"])
        for one in found["candidates"]
    }
    assert {(6, 4), (4, 6), (24, 1), (1, 24), (6, 8), (48, 1)} <= products
    assert all(micro * steps in (24, 48) for micro, steps in products)


@pytest.mark.nightly("documents")
def test_one_pair_of_8k_fits_where_it_is_checkpointed(autotune: Command) -> None:
    one = ["--set", "per_device_train_batch_size=1", "--set", "activation_offloading=false"]
    one += ["--set", "gradient_checkpointing=true", "--set", "max_length=8192"]
    found = plan(autotune, "reward-long-context/job.yaml", *one, "--device", "a100-40gb")
    (candidate,) = found["candidates"]
    assert candidate["fits"]
    assert 10 * GIB < candidate["estimate"]["peak_memory_bytes"] < 20 * GIB


@pytest.mark.nightly("documents")
def test_all_completions_of_a_batch_can_be_generated_at_once(autotune: Command) -> None:
    one = ["--set", "per_device_train_batch_size=2", "--set", "gradient_checkpointing=true"]
    one += ["--set", "generation_batch_size=64", "--device", "h100"]
    (candidate,) = plan(autotune, "grpo-7b-lora/job.yaml", *one)["candidates"]
    assert candidate["fits"] and candidate["estimate"]["method"] == "scaled trace"


@pytest.mark.nightly("documents")
def test_eight_gpus_are_divided_between_training_and_a_server(autotune: Command) -> None:
    one = ["--set", "per_device_train_batch_size=1", "--set", "gradient_checkpointing=true"]
    one += ["--set", "num_processes=4", "--device", "h100"]
    found = plan(autotune, "grpo-7b-lora/split.yaml", *one)
    assert all(candidate["fits"] for candidate in found["candidates"])
    servers = {s["devices"]: s for s in (c["estimate"]["server"] for c in found["candidates"])}
    assert sorted(servers) == [1, 2, 4] and len(found["candidates"]) == 3
    (note,) = found["notes"]
    assert "8 processes would leave the server none" in note
    weights = {devices: server["weights_bytes"] for devices, server in servers.items()}
    assert weights[1] == 2 * weights[2] == 4 * weights[4] == 2 * found["model"]["parameters"]


@pytest.mark.nightly("ppo")
def test_ppo_takes_far_more_than_methods_without_a_value_model(autotune: Command) -> None:
    one = ["--set", "recipe.dtype=[bfloat16]", "--set", "per_device_train_batch_size=4"]
    one += ["--set", "gradient_checkpointing=true", "--device", "memory=40GiB"]
    one += ["--set", "optim=adamw_torch"]  # which is estimated from the trace of the fused one
    rollouts = {
        "job": "local_rollout_forward_batch_size=64",
        "rloo": "generation_batch_size=64",
    }
    peaks = {}
    for name, knob in rollouts.items():
        found = plan(autotune, f"ppo-memory/{name}.yaml", *one, "--set", knob)
        (candidate,) = found["candidates"]
        assert candidate["estimate"]["method"] == "scaled trace"
        peaks[name] = candidate["estimate"]["peak_memory_bytes"]
    assert peaks["job"] > 2 * peaks["rloo"]
