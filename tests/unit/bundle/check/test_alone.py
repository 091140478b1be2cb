"""A trainer's YAML with DeepSpeed's JSON, and no file of accelerate's."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.calling import call

TRAINER = {
    "model_name_or_path": "some/model",
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "learning_rate": 2e-5,
    "bf16": True,
    "deepspeed": "ds.json",
}
DEEPSPEED = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3},
}


def check(folder: Path, trainer: dict[str, Any], deepspeed: dict[str, Any]) -> dict[str, Any]:
    (folder / "theirs.yaml").write_text(yaml.safe_dump(trainer), encoding="utf-8")
    (folder / "ds.json").write_text(json.dumps(deepspeed), encoding="utf-8")
    result = call("check", folder, "--json")
    told: dict[str, Any] = json.loads(result.stdout)
    assert result.exit_code == (0 if told["agree"] else 1)
    return told


def test_two_files_that_agree(tmp_path: Path) -> None:
    told = check(tmp_path, TRAINER, DEEPSPEED)
    assert told["problems"] == []
    assert told["files"] == ["theirs.yaml", "ds.json"]


@pytest.mark.parametrize(
    ("trainer", "deepspeed", "where", "what"),
    [
        (
            {},
            {"train_micro_batch_size_per_gpu": 8},
            "ds.json: train_micro_batch_size_per_gpu",
            "is `8`, but the trainer has per_device_train_batch_size: `4`",
        ),
        (
            {"deepspeed": None},
            {},
            "theirs.yaml: deepspeed",
            "is missing: without it ds.json is never read",
        ),
        (
            {"auto_find_batch_size": True},
            {},
            "theirs.yaml: auto_find_batch_size",
            "is `true`, which the trainer refuses with ZeRO-3",
        ),
        (
            {"deepspeed": "other.json"},
            {},
            "theirs.yaml: deepspeed",
            "is `other.json`, and there is no such file",
        ),
    ],
)
def test_two_files_that_do_not(
    tmp_path: Path, trainer: Any, deepspeed: Any, where: str, what: str
) -> None:
    merged = {k: v for k, v in {**TRAINER, **trainer}.items() if v is not None}
    told = check(tmp_path, merged, {**DEEPSPEED, **deepspeed})
    assert [(p["where"], p["what"]) for p in told["problems"]] == [(where, what)]


def test_a_trainers_file_alone_still_wants_its_launcher(tmp_path: Path) -> None:
    plain = {name: value for name, value in TRAINER.items() if name != "deepspeed"}
    (tmp_path / "theirs.yaml").write_text(yaml.safe_dump(plain), encoding="utf-8")
    result = call("check", tmp_path)
    assert result.exit_code == 2
    assert "no accelerate file was found" in result.stderr
