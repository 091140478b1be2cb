"""Every method on a virtual GPU, from a job to a bundle that its own launch has verified.

Speeds are those of the virtual GPU's clock, which counts work: no test here compares them.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cpu.conftest import LLAMA
from tests.cpu.stand_ins import give_tokenizer
from tests.cpu.test_ppo import save_judge
from tests.guards import some_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "quickstart" / "build"
AMPERE, HOPPER = "a100-80gb", "h200"
REWARDS = "def by_length(completions, **_):\n    return [len(text) % 7 for text in completions]\n"
FIXED = {
    "attn_implementation": "sdpa",
    "optim": "adamw_torch_fused",
    "gradient_checkpointing": False,
    "expandable_segments": False,
    "per_device_train_batch_size": 4,
}
"""One way through the program, so that little is traced: `sft-lora` alone searches more."""
OFFLINE = {
    "global_batch_size": 8,
    "max_length": 64,
    "fixed": {**FIXED, "activation_offloading": False, "dataloader_num_workers": 0},
}
PREFERENCE = {**OFFLINE, "fixed": {**OFFLINE["fixed"], "precompute_ref_log_probs": False}}
ONLINE = {
    "global_batch_size": 8,
    "reward_funcs": ["my_rewards.by_length"],
    "fixed": {**FIXED, "num_generations": 4, "max_completion_length": 8},
}
PPO = {
    "global_batch_size": 8,
    "reward_model_path": "judge",
    "fixed": {
        **FIXED,
        "gradient_checkpointing": True,
        "response_length": 8,
        "local_rollout_forward_batch_size": 4,
        "num_ppo_epochs": 1,
    },
}
SEARCHED = {"global_batch_size": 8, "max_length": 64, "fixed": {"gradient_checkpointing": False}}
# Reward models: test_several.py, on two devices.
METHODS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "sft-full": (AMPERE, "data", {**OFFLINE, "tuning": "full", "precision": "fp16"}),
    "sft-lora": (HOPPER, "data", {**SEARCHED, "tuning": "lora"}),
    "sft-qlora": (AMPERE, "data", {**OFFLINE, "tuning": "qlora"}),
    "dpo-lora": (AMPERE, "pairs", {**PREFERENCE, "tuning": "lora"}),
    "kto-full": (HOPPER, "labelled", {**PREFERENCE, "tuning": "full"}),
    "grpo-lora": (AMPERE, "prompts", {**ONLINE, "tuning": "lora"}),
    "rloo-full": (HOPPER, "prompts", {**ONLINE, "tuning": "full"}),
    "ppo-full": (AMPERE, "prompts", {**PPO, "tuning": "full", "precision": "bf16"}),
}


def write_job(folder: Path, method: str, dataset: str, fields: dict[str, Any]) -> None:
    """A job of a tiny model of random weights, on the example's rows."""
    (folder / "model").mkdir()
    config = {**LLAMA, "vocab_size": 8192}
    (folder / "model" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    give_tokenizer(folder / "model")
    if method == "ppo":
        save_judge(folder / "judge")
    (folder / "my_rewards.py").write_text(REWARDS, encoding="utf-8")
    job = {
        "model": "model",
        "method": method,
        "dataset": str(EXAMPLE / dataset),
        "budget": {"probes": 2, "minutes": 5},
        **fields,
    }
    (folder / "job.yaml").write_text(json.dumps(job), encoding="utf-8")


@pytest.mark.parametrize("name", some_of(METHODS, {"sft-full"}, "virtual_gpu"))
def test_a_job_becomes_a_verified_bundle(name: str, virtual_gpu: Any, tmp_path: Path) -> None:
    kind, dataset, fields = METHODS[name]
    write_job(tmp_path, name.partition("-")[0], dataset, fields)
    gpu = virtual_gpu(kind)
    result = gpu.autotune("run", "job.yaml", "--out", "run", expect=None)
    assert result["outcome"] == "recommended", result
    verification = result["verification"]
    assert verification["saved"], verification
    assert verification["evaluated"] == (name != "ppo-full")  # its trainer does not evaluate
    assert verification["verified"] or (
        verification["only_too_slow"] or verification["only_too_fast"]
    ), verification
    best = result["measurement"]
    assert best["allocator_retries"] == 0
    assert 0 < best["allocated_peak_bytes"] <= best["reserved_peak_bytes"]
    assert best["reserved_peak_bytes"] < best["peak_memory_bytes"]
    report = gpu.autotune("report", "run")
    outcomes = {probe["measurement"]["outcome"] for probe in report["probes"]}
    assert outcomes <= {"ok", "stopped"}, report["probes"]
