"""`autotune check` of files that people have; first of a trainer's YAML and DeepSpeed's JSON."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.bundle.check import asking
from autotune.process.limits import Limits
from tests.kept import kept_servers
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


@pytest.fixture(scope="module", autouse=True)
def _servers_kept() -> Iterator[None]:
    """All checks of this file share one fork server."""
    with kept_servers():
        yield


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
            "transformers' Trainer refuses it: `auto_find_batch_size` isn't supported yet with "
            "DeepSpeed Zero-3. Please consider using Zero-2, Zero-1, or FSDP",
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


ACCELERATE = {"compute_environment": "LOCAL_MACHINE", "distributed_type": "DEEPSPEED"}
BATCH = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 8}
OF_TRAINER = {"model_name_or_path": "Qwen/Qwen2.5-7B", "dataset_name": "someone/x", **BATCH}
FILLED = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "zero_optimization": {"stage": 2},
}
SCHEDULE = {"total_num_steps": "auto", "warmup_max_lr": "auto", "warmup_num_steps": 500}
Case = tuple[dict[str, Any], dict[str, Any] | None, dict[str, Any] | None, tuple[str, str]]
CASES: dict[str, Case] = {
    "a number that is a text": (
        OF_TRAINER | {"fp16": True},
        ACCELERATE | {"num_processes": 8, "deepspeed_config": {"deepspeed_config_file": "ds.json"}},
        FILLED | {"gradient_accumulation_steps": "8", "fp16": {"enabled": "auto"}},
        ("ds.json: gradient_accumulation_steps", "is the text `8`"),
    ),
    "a precision of accelerate's": (
        OF_TRAINER | {"bf16": False, "fp16": False},
        ACCELERATE
        | {"num_processes": 2, "mixed_precision": "fp16"}
        | {"deepspeed_config": {"gradient_accumulation_steps": 8, "zero_stage": 2}},
        None,
        (
            "accelerate.yaml: mixed_precision",
            "is `fp16`, so that DeepSpeed has fp16.enabled: `true`, but the trainer has fp16: "
            "`false`",
        ),
    ),
    "steps of a schedule": (
        OF_TRAINER | {"bf16": True, "warmup_steps": 100, "deepspeed": "ds.json"},
        None,
        FILLED | {"scheduler": {"type": "WarmupDecayLR", "params": SCHEDULE}},
        (
            "ds.json: scheduler.params.warmup_num_steps",
            "is `500`, but the trainer has warmup_steps: `100`",
        ),
    ),
}


def write(folder: Path, trainer: Any, accelerate: Any, deepspeed: Any) -> Path:
    """The files of a launch, as people name them."""
    for name, data in (("sft.yaml", trainer), ("accelerate.yaml", accelerate)):
        if data is not None:
            (folder / name).write_text(yaml.safe_dump(data), encoding="utf-8")
    if deepspeed is not None:
        (folder / "ds.json").write_text(json.dumps(deepspeed), encoding="utf-8")
    return folder


@pytest.mark.parametrize("name", CASES)
def test_what_a_launch_would_refuse_is_said_with_file_and_field(name: str, tmp_path: Path) -> None:
    *files, expected = CASES[name]
    result = call("check", write(tmp_path, *files), "--json")
    told = json.loads(result.stdout)
    assert [(one["where"], one["what"]) for one in told["problems"]] == [expected]
    assert (result.exit_code, told["not_asked"], told["conditions"]) == (1, None, [])


def test_a_number_of_processes_that_nobody_says_is_a_condition(tmp_path: Path) -> None:
    numbers = {"train_batch_size": 256, "train_micro_batch_size_per_gpu": 8}
    numbers |= {"gradient_accumulation_steps": 4, "bf16": {"enabled": "auto"}}
    trainer = OF_TRAINER | {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 4}
    folder = write(tmp_path, trainer | {"deepspeed": "ds.json"}, None, FILLED | numbers)
    result = call("check", folder)
    assert (result.exit_code, result.stdout) == (
        0,
        "on condition of ds.json: train_batch_size: 256 = 8 x 4 x 8 processes\n"
        "sft.yaml, ds.json: agree\n",
    )
    assert call("check", folder, "--devices", 8).stdout == "sft.yaml, ds.json: agree\n"
    result = call("check", folder, "--devices", 4)
    assert result.exit_code == 1
    assert (
        "is `256`, but the trainer has train_batch_size (of all processes): `128`" in result.stdout
    )


def test_groups_of_completions_set_a_condition_too(tmp_path: Path) -> None:
    trainer = OF_TRAINER | {"num_generations": 16, "beta": 0.0, "gradient_accumulation_steps": 1}
    folder = write(tmp_path, trainer | {"deepspeed": "ds.json"}, None, FILLED)
    result = call("check", folder, "--json")
    told = json.loads(result.stdout)
    assert (result.exit_code, told["conditions"]) == (
        0,
        ["4 processes; 1, 2 would be refused"],
    )


@pytest.mark.parametrize("name", ["tf32", "bf16_full_eval", "bf16"])
def test_what_the_trainer_asks_of_a_machine_is_no_disagreement(name: str, tmp_path: Path) -> None:
    trainer = OF_TRAINER | {name: True, "deepspeed": "ds.json", "ddp_backend": "nccl"}
    assert call("check", write(tmp_path, trainer, None, FILLED)).exit_code == 0


def test_nothing_of_the_files_is_run_or_read(tmp_path: Path) -> None:
    """Neither what they name is imported or opened, nor what they set reaches this process."""
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'RAN')!r}, 'w')\n", encoding="utf-8")
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "other.json").write_text('{"zero_optimization": {"stage": 77}}', encoding="utf-8")
    own = {"deepspeed_config_file": "ds.json", "logs_specs": "evil", "log_dir": str(secret / "log")}
    trainer = OF_TRAINER | {
        "env": {"PYTHONPATH": str(tmp_path), "ACCELERATE_MIXED_PRECISION": "fp8"},
        "fsdp_config": str(secret / "other.json"),
        "accelerator_config": str(secret / "other.json"),
        "reward_funcs": ["evil.reward"],
        "bf16": False,
    }
    accelerate = ACCELERATE | {
        "num_processes": 2,
        "deepspeed_config": own,
        "mpirun_config": {"mpirun_hostfile": str(secret / "other.json")},
    }
    compiled = {"compile": {"backend": "evil.backend"}, "checkpoint": {"writer": {"type": "evil"}}}
    result = call("check", write(tmp_path, trainer, accelerate, FILLED | compiled))
    assert result.exit_code in (0, 1)
    assert "77" not in result.output
    assert not (tmp_path / "RAN").exists()
    assert not (secret / "log").exists()


def test_an_answer_that_does_not_come_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "LIMITS", Limits(wall_s=0.0))
    trainer = OF_TRAINER | {"bf16": True, "deepspeed": "ds.json"}
    result = call("check", write(tmp_path, trainer, None, FILLED))
    assert (result.exit_code, result.stdout) == (0, "sft.yaml, ds.json: agree\n")
    assert "the installed libraries were not asked: it gave no answer in 0 s" in result.stderr
