"""Files of launches in pairs: one that disagrees, and the same made to agree.

Each was launched for real: `tests/cpu/test_launch_several.py` does it again, nightly.
"""

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

TRAINER: dict[str, Any] = {
    "model_name_or_path": "model",
    "dataset_name": "rows",
    "output_dir": "out",
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "learning_rate": 1.0e-3,
    "max_length": 64,
    "max_steps": 2,
    "bf16": False,
    "gradient_checkpointing": False,
    "logging_steps": 1,
    "report_to": "none",
    "save_strategy": "no",
}
LAUNCHER: dict[str, Any] = {
    "compute_environment": "LOCAL_MACHINE",
    "main_process_port": 0,
    "num_machines": 1,
    "num_processes": 2,
}
DEEPSPEED: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "zero_optimization": {"stage": 2},
}
FSDP: dict[str, Any] = {
    "fsdp_version": 2,
    "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    "fsdp_reshard_after_forward": True,
}
Changes = Mapping[str, Any]
"""`file.a.b.c` -> the value there; None: the field is taken out."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """What is wrong in the first of two sets of files.

    Attributes:
        wrong: what makes it wrong, and both: what the two have besides their engine's files.
        where: where the check finds it, and words that it says.
        launch: words that the launch ends with; empty: it trains, and does not what is asked.
    """

    wrong: Changes
    where: str
    says: str
    launch: str
    engine: str = "deepspeed"
    both: Changes = field(default_factory=dict)


PAIRS: dict[str, Pair] = {
    "micro_batch": Pair(
        wrong={"ds.train_micro_batch_size_per_gpu": 4},
        where="ds.json: train_micro_batch_size_per_gpu",
        says="is `4`, but the trainer has per_device_train_batch_size: `2`",
        launch="ds train_micro_batch_size_per_gpu=4 vs hf per_device_train_batch_size=2",
    ),
    "accumulation_left_out": Pair(
        wrong={"ds.gradient_accumulation_steps": None},
        where="ds.json: gradient_accumulation_steps",
        says="is missing, which means `1`",
        launch="ds gradient_accumulation_steps=1 vs hf gradient_accumulation_steps=2",
    ),
    "accumulation_of_accelerate": Pair(
        wrong={"accelerate.deepspeed_config.gradient_accumulation_steps": 4},
        where="accelerate.yaml: deepspeed_config.gradient_accumulation_steps",
        says="is `4`, but the trainer has gradient_accumulation_steps: `2`",
        launch="ds gradient_accumulation_steps=4 vs hf gradient_accumulation_steps=2",
        engine="section",
    ),
    "number_as_text": Pair(
        wrong={"ds.gradient_accumulation_steps": "2"},
        where="ds.json: gradient_accumulation_steps",
        says="is the text `2`",
        launch="unsupported operand type",
    ),
    "learning_rate": Pair(
        wrong={"ds.optimizer.params.lr": 5e-4},
        both={"ds.optimizer": {"type": "AdamW", "params": {"lr": "auto"}}},
        where="ds.json: optimizer.params.lr",
        says="is `0.0005`, but the trainer has learning_rate: `0.001`",
        launch="ds optimizer.params.lr=0.0005 vs hf learning_rate=0.001",
    ),
    "whole_batch": Pair(
        wrong={"ds.train_batch_size": 16},
        where="ds.json: train_batch_size",
        says="is `16`, but the trainer has train_batch_size (of all processes): `8`",
        launch="ds train_batch_size=16 vs hf train_batch_size (calculated)=8",
    ),
    "stage": Pair(
        wrong={"ds.zero_optimization.stage": 4},
        where="ds.json: zero_optimization.stage",
        says="is `4`: input should be 0, 1, 2",
        launch="DeepSpeedZeroConfig",
    ),
    "unknown_name": Pair(
        wrong={"ds.zero_optimization.overlap_com": True},
        where="ds.json: zero_optimization.overlap_com",
        says="DeepSpeed has no such field",
        launch="overlap_com",
    ),
    "auto_that_nobody_fills": Pair(
        wrong={"ds.zero_optimization.allgather_bucket_size": "auto"},
        where="ds.json: zero_optimization.allgather_bucket_size",
        says="`zero_optimization.allgather_bucket_size` not found in kwargs",
        launch="`zero_optimization.allgather_bucket_size` not found in kwargs",
    ),
    "stage_beside_the_file": Pair(
        wrong={"accelerate.deepspeed_config.zero_stage": 2},
        where="accelerate.yaml: deepspeed_config.zero_stage",
        says="accelerate refuses it beside deepspeed_config_file",
        launch="the following accelerate config variables will be ignored",
    ),
    "unknown_field_of_accelerate": Pair(
        wrong={"accelerate.num_procesess": 2},
        where="accelerate.yaml: num_procesess",
        says="unknown keys (['num_procesess'])",
        launch="unknown keys (['num_procesess'])",
    ),
    "processes_with_a_fraction": Pair(
        wrong={"accelerate.num_processes": 2.0},
        where="accelerate.yaml: num_processes",
        says="is `2.0`",
        launch="2.0",
    ),
    "precision_of_accelerate": Pair(
        wrong={"accelerate.mixed_precision": "fp16"},
        where="accelerate.yaml: mixed_precision",
        says="is `fp16`, so that DeepSpeed has fp16.enabled: `true`",
        launch="ds fp16.enabled=True vs hf fp16|fp16_full_eval=False",
        engine="section",
    ),
    "warmup": Pair(
        wrong={"ds.scheduler.params.warmup_num_steps": 5},
        both={
            "ds.scheduler": {
                "type": "WarmupDecayLR",
                "params": {
                    "total_num_steps": "auto",
                    "warmup_min_lr": 0,
                    "warmup_max_lr": "auto",
                    "warmup_num_steps": 1,
                },
            },
            "sft.warmup_steps": 1,
        },
        where="ds.json: scheduler.params.warmup_num_steps",
        says="is `5`, but the trainer has warmup_steps: `1`",
        launch="ds scheduler.params.warmup_num_steps=5 vs hf warmup_steps=1",
    ),
    "unquoted_no": Pair(
        wrong={"sft.eval_strategy": False},
        where="sft.yaml: eval_strategy",
        says="is `false`",
        launch="False is not a valid IntervalStrategy",
    ),
    "rows_with_a_fraction": Pair(
        wrong={"sft.per_device_train_batch_size": 2.0},
        where="sft.yaml: per_device_train_batch_size",
        says="is `2.0`: has to be int",
        launch="batch_size",
    ),
    "batch_finder": Pair(
        wrong={"sft.auto_find_batch_size": True},
        both={"ds.zero_optimization.stage": 3},
        where="sft.yaml: auto_find_batch_size",
        says="isn't supported yet with DeepSpeed Zero-3",
        launch="isn't supported yet with DeepSpeed Zero-3",
    ),
    "reshards": Pair(
        wrong={"accelerate.fsdp_config.fsdp_reshard_after_forward": "FULL_SHARD"},
        where="accelerate.yaml: fsdp_config.fsdp_reshard_after_forward",
        says="invalid truth value full_shard",
        launch="invalid truth value full_shard",
        engine="fsdp",
    ),
    "checkpoints_twice": Pair(
        wrong={"sft.gradient_checkpointing": True},
        both={"accelerate.fsdp_config.fsdp_activation_checkpointing": True},
        where="accelerate.yaml: fsdp_config.fsdp_activation_checkpointing",
        says="can't both be set to True",
        launch="can't both be set to True",
        engine="fsdp",
    ),
}


def write_pair(folder: Path, name: str, *, wrong: bool, also: Changes | None = None) -> None:
    """Write the files of one side of a pair."""
    pair = PAIRS[name]
    files = {"sft": copy.deepcopy(TRAINER), "accelerate": copy.deepcopy(LAUNCHER)}
    if pair.engine == "fsdp":
        files["accelerate"] |= {"distributed_type": "FSDP", "fsdp_config": dict(FSDP)}
    else:
        own = {"zero_stage": 2, "gradient_accumulation_steps": 2}
        if pair.engine == "deepspeed":
            own = {"deepspeed_config_file": str(folder / "ds.json"), "zero3_init_flag": False}
            files["ds"] = copy.deepcopy(DEEPSPEED)
        files["accelerate"] |= {"distributed_type": "DEEPSPEED", "deepspeed_config": own}
    for changes in (pair.both, pair.wrong if wrong else {}, also or {}):
        for path, value in changes.items():
            *parents, last = path.split(".")
            inside: Any = files
            for parent in parents:
                inside = inside.setdefault(parent, {})
            if value is None:
                inside.pop(last)
            else:
                inside[last] = value
    folder.mkdir(parents=True)
    for file, data in files.items():
        if file == "ds":
            (folder / "ds.json").write_text(json.dumps(data), encoding="utf-8")
        else:
            (folder / f"{file}.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")
