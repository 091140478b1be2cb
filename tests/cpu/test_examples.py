"""The cases people brought (`examples/`): what is planned of them, and one of them for real on a
stand-in of the same architecture."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cpu.conftest import Command
from tests.cpu.test_run import assert_launched

EXAMPLES = Path(__file__).parents[2] / "examples"
TINY = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 512,
    "max_position_embeddings": 512,
}
STAND_INS = {
    "reward-long-context": ["max_length=64", "recipe.max_length=[64]", "precision=fp32"],
}


def plan(autotune: Command, name: str, *arguments: str, expect: int = 0) -> dict[str, Any]:
    job = str(EXAMPLES / name / "job.yaml")
    out = autotune("plan", job, "--json", *arguments, expect=expect)
    plain: dict[str, Any] = json.loads(out)
    return plain


def test_memory_grows_with_the_length_of_the_rows(autotune: Command) -> None:
    found = plan(autotune, "sft-memory-by-length", "--device", "a100-40gb")
    peaks = {
        one["knobs"]["max_length"]: one["estimate"]["peak_memory_bytes"]
        for one in found["candidates"]
    }
    assert sorted(peaks) == [4, 16, 64, 256, 1024]
    assert [peaks[n] for n in sorted(peaks)] == sorted(peaks.values())
    assert peaks[1024] > 2 * peaks[4]


def test_every_way_of_making_up_the_batch_is_there(autotune: Command) -> None:
    found = plan(autotune, "sft-factorisations", "--device", "memory=24GiB")
    products = {
        (one["knobs"]["per_device_train_batch_size"], one["knobs"]["gradient_accumulation_steps"])
        for one in found["candidates"]
    }
    assert {(6, 4), (4, 6), (24, 1), (1, 24), (6, 8), (48, 1)} <= products
    assert all(micro * steps in (24, 48) for micro, steps in products)


def test_ppo_takes_far_more_than_methods_without_a_value_model(autotune: Command) -> None:
    one = ["--set", "recipe.dtype=[bfloat16]", "--set", "per_device_train_batch_size=4"]
    one += ["--set", "gradient_checkpointing=true", "--device", "memory=40GiB"]
    rollouts = {
        "job": "local_rollout_forward_batch_size=64",
        "rloo": "generation_batch_size=64",
    }
    peaks = {}
    for name, knob in rollouts.items():
        job = str(EXAMPLES / "ppo-memory" / f"{name}.yaml")
        found = json.loads(autotune("plan", job, "--json", *one, "--set", knob))
        (candidate,) = found["candidates"]
        assert candidate["estimate"]["method"] == "scaled trace"
        peaks[name] = candidate["estimate"]["peak_memory_bytes"]
    assert peaks["job"] > 2 * peaks["rloo"]


@pytest.mark.parametrize("name", STAND_INS)
def test_an_example_runs_on_a_stand_in(name: str, autotune: Command) -> None:
    config = json.loads((EXAMPLES / name / "model" / "config.json").read_text(encoding="utf-8"))
    model = autotune.folder / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({**config, **TINY}), encoding="utf-8")
    sets = [f"model={model / 'config.json'}", "dataset={lengths: {max: 60, rows: 200}}"]
    sets += [*STAND_INS[name], "budget=2", "recipe.dtype=[float32]"]
    flags = [part for one in sets for part in ("--set", one)]
    job = str(EXAMPLES / name / "job.yaml")
    result = json.loads(autotune("run", job, "--out", "run", "--json", "--no-history", *flags))
    assert result["outcome"] == "recommended"
    assert_launched(result["verification"])
