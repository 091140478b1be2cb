"""What Axolotl's fields mean in a job, by its own defaults."""

import pytest

from autotune.errors import UserError
from tests.unit.space.foreign.files import AXOLOTL, changed, fates, imported


def test_axolotls_lora() -> None:
    found = imported(AXOLOTL)
    job = found.job
    assert (job["tuning"], job["max_length"], job["global_batch_size"]) == ("lora", 2048, 4)
    assert (job["precision"], job["fixed"]["dtype"]) == ("bf16", "bfloat16")
    assert job["fixed"]["packing"] is True
    assert job["fixed"]["optim"] == "adamw_8bit"  # it learns otherwise, so it is not searched
    assert job["training"]["num_train_epochs"] == 1
    searched = fates(found, "searched")
    assert {"flash_attention", "gradient_checkpointing"} <= searched.keys()
    assert "val_set_size" in fates(found, "left")


def test_axolotls_defaults() -> None:
    without = ("sequence_len", "num_epochs", "lr_scheduler", "warmup_steps", "micro_batch_size")
    job = imported(changed(AXOLOTL, without=[*without, "lora_dropout", "bf16", "optimizer"])).job
    assert (job["max_length"], job["precision"]) == (512, "bf16")
    assert job["global_batch_size"] == 1 * 2
    training = job["training"]
    assert (training["num_train_epochs"], training["lr_scheduler_type"]) == (1.0, "cosine")
    assert (training["warmup_steps"], training["lora_dropout"]) == (0.03, 0.0)
    assert "optim" not in job["fixed"]


def test_axolotls_own_batch_and_parallel_rows() -> None:
    text = changed(AXOLOTL, ["batch_size: 32"], without=["gradient_accumulation_steps"])
    with pytest.raises(UserError) as caught:
        imported(text, devices=2)
    assert caught.value.problems[0].hint == "write gradient_accumulation_steps"
    found = imported(changed(AXOLOTL, ["batch_size: 32"]))
    assert (found.job["global_batch_size"], "batch_size" in fates(found, "left")) == (4, True)
    shared = imported(changed(AXOLOTL, ["context_parallel_size: 2"]), devices=8)
    assert shared.job["global_batch_size"] == 2 * 2 * (8 // 2)
    assert shared.job["devices"]["count"] == 8


@pytest.mark.parametrize(
    ("adapter", "bits", "tuning"),
    [("qlora", "load_in_4bit", "qlora"), ("lora", "load_in_8bit", "qlora"), ("", "", "full")],
)
def test_what_axolotl_trains(adapter: str, bits: str, tuning: str) -> None:
    lines = [f"adapter: {adapter}", *([f"{bits}: true"] if bits else [])]
    job = imported(changed(AXOLOTL, lines, without=["adapter"])).job
    assert job["tuning"] == tuning
    assert job["fixed"].get("load_in_8bit", False) is (bits == "load_in_8bit")


def test_axolotls_conversations_are_carried() -> None:
    rows = "datasets: [{path: org/chat, type: chat_template, field_messages: turns, split: a}]"
    without = ["datasets", "  - path", "    type"]
    job = imported(changed(AXOLOTL, [rows], without=without)).job
    assert (job["dataset"], job["columns"]) == ("org/chat", {"messages": "turns"})
    assert job["dataset_train_split"] == "a"


@pytest.mark.parametrize(
    ("entry", "dataset"),
    [
        ("path: json, data_files: a.jsonl", "a.jsonl"),
        ("path: parquet, data_files: [sub/a.parquet]", "sub/a.parquet"),
        ("data_files: a.jsonl", "a.jsonl"),
        ("path: ./rows, data_files: a.jsonl", "./rows/a.jsonl"),
        ("path: owner/repo, data_files: sub/a.jsonl", {"lengths": {"max": 2048}}),
        ("path: json, data_files: [a.jsonl, b.jsonl]", {"lengths": {"max": 2048}}),
    ],
)
def test_files_of_axolotls_data(entry: str, dataset: object) -> None:
    rows = f"datasets: [{{{entry}, type: completion}}]"
    found = imported(changed(AXOLOTL, [rows], without=["datasets", "  - path", "    type"]))
    assert found.job["dataset"] == dataset


@pytest.mark.parametrize("word", ["auto", "full", "true", "True", "yes", "'on'"])
def test_axolotls_words_for_mixed_precision(word: str) -> None:
    for name in ("bf16", "bfloat16"):
        job = imported(changed(AXOLOTL, [f"{name}: {word}"], without=["bf16"])).job
        assert job["precision"] == "bf16"


def test_axolotls_methods() -> None:
    grpo = ["rl: grpo", "trl: {num_generations: 4, beta: 0.04, reward_funcs: [mine.score]}"]
    job = imported(changed(AXOLOTL, grpo)).job
    assert (job["method"], job["fixed"]["num_generations"]) == ("grpo", 4)
    assert job["reward_funcs"] == ["mine.score"]
    assert "max_length" not in job
    assert imported(changed(AXOLOTL, ["rl: dpo", "rl_beta: 0.3"])).job["training"]["beta"] == 0.3
    with pytest.raises(UserError, match="autotune cannot train this: `rl: simpo`"):
        imported(changed(AXOLOTL, ["rl: simpo"]))
