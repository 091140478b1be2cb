"""The five problems as their authors write them, nothing pinned: the answer is the README's."""

import json
import os
from typing import Any

import pytest

from tests.cpu.conftest import Command
from tests.cpu.stand_ins import EXAMPLES

PROBLEMS = EXAMPLES / "five-problems"
LONG = pytest.mark.skipif(
    not os.environ.get("AUTOTUNE_LONG_TESTS"), reason="minutes: AUTOTUNE_LONG_TESTS=1"
)


def answer(autotune: Command, job: str, device: str) -> dict[str, Any]:
    out = autotune("plan", str(PROBLEMS / job), "--device", device, "--json")
    plan: dict[str, Any] = json.loads(out)
    told: dict[str, Any] = plan["answer"]
    return told


@pytest.mark.parametrize(
    ("job", "device", "knobs"),
    [
        (
            "sft-0.5b.yaml",
            "GeForce RTX 3060 12 GB",
            {"per_device_train_batch_size": 16, "gradient_checkpointing": True},
        ),
        (
            "sft-small-llama.yaml",
            "rtx-4090",
            {"per_device_train_batch_size": 6, "gradient_checkpointing": False},
        ),
        (
            "reward-gemma3-4b.yaml",
            "a100-40gb",
            {"per_device_train_batch_size": 1, "gradient_checkpointing": True},
        ),
    ],
)
def test_the_answer_is_that_of_the_readme(autotune: Command, job, device, knobs) -> None:
    told = answer(autotune, job, device)
    assert told["safe"] and {name: told["knobs"][name] for name in knobs} == knobs
    page = (PROBLEMS / "README.md").read_text(encoding="utf-8").replace("\n> ", " ")
    assert told["text"] in page


@LONG
@pytest.mark.parametrize(
    ("job", "device"), [("ppo-0.5b.yaml", "rtx-4090"), ("ppo-7b.yaml", "a100-80gb")]
)
def test_ppo_with_float32_weights_does_not_fit_and_what_would_is_traced(
    autotune: Command, job, device
) -> None:
    plan = json.loads(autotune("plan", str(PROBLEMS / job), "--device", device, "--json", expect=1))
    assert plan["answer"] is None
    methods = {way["estimate"]["method"] for way in plan["advice"]["ways"]}
    assert "closed form" not in methods


@LONG
def test_the_answer_for_eight_gpus_is_that_of_the_readme(autotune: Command) -> None:
    told = answer(autotune, "lora-7b-8-gpus.yaml", "h100")
    assert told["safe"]
    page = (PROBLEMS / "README.md").read_text(encoding="utf-8").replace("\n> ", " ")
    assert told["text"] in page
