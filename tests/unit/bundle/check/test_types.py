"""Bundles by hand with values that their fields cannot have."""

import copy
import json

import pytest
import yaml
from click.testing import CliRunner

from autotune.bundle.check.check import disagreements
from autotune.bundle.check.read import read_launch
from autotune.bundle.check.types import (
    OF_ACCELERATE,
    deepspeed_kinds,
    of_type,
)
from autotune.cli import main
from autotune.facts.launch_fields import launch_fields

BAD = (None, 0, -1, "four", [], {}, True)
TRAINER = {
    "model_name_or_path": "some/model",
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 2,
    "num_generations": 8,
    "max_grad_norm": 1.0,
    "learning_rate": 2e-5,
    "bf16": True,
    "fp16": False,
    "eval_strategy": "no",
    "optim": "adamw_torch_fused",
    "lora_target_modules": ["q_proj"],
}
ACCELERATE = {
    "compute_environment": "LOCAL_MACHINE",
    "distributed_type": "DEEPSPEED",
    "deepspeed_config": {"deepspeed_config_file": "deepspeed.json", "zero3_init_flag": True},
    "machine_rank": 0,
    "main_process_port": 29500,
    "num_machines": 1,
    "num_processes": 4,
    "use_cpu": False,
}
DEEPSPEED = {
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 1.0,
    "steps_per_print": 10,
    "bf16": {"enabled": True},
    "fp16": {"enabled": False, "loss_scale": 0},
    "optimizer": {"type": "AdamW", "params": {"lr": 2e-5, "betas": [0.9, 0.999]}},
    "zero_optimization": {
        "stage": 3,
        "overlap_comm": True,
        "reduce_bucket_size": 1000,
        "zero_hpz_partition_size": 1,
        "offload_optimizer": {"device": "nvme", "nvme_path": "/fast", "pin_memory": True},
    },
}
FILES = {"grpo_config.yaml": TRAINER, "accelerate.yaml": ACCELERATE, "deepspeed.json": DEEPSPEED}


def write(folder, files=FILES):
    for name, data in files.items():
        text = json.dumps(data) if name.endswith(".json") else yaml.safe_dump(data)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def put(file, path, value):
    """All files, with another value at `a.b.c` of one."""
    files = copy.deepcopy(FILES)
    *parts, last = path.split(".")
    inside = files[file]
    for part in parts:
        inside = inside[part]
    inside[last] = value
    return files


def leaves(data, path=""):
    for name, value in data.items():
        yield f"{path}{name}", value
        if isinstance(value, dict):
            yield from leaves(value, f"{path}{name}.")


def test_the_bundle_without_a_wrong_value_agrees(tmp_path):
    assert disagreements(read_launch(write(tmp_path))) == ()


@pytest.mark.parametrize("file", FILES)
def test_no_value_ends_the_check_with_a_traceback(file, tmp_path):
    for path, value in leaves(FILES[file]):
        for bad in BAD:
            if type(bad) is type(value) and bad == value:
                continue
            write(tmp_path, put(file, path, bad))
            done = CliRunner().invoke(main, ["check", str(tmp_path)])
            assert done.exit_code in (0, 1, 2), (path, bad, done.output)
            assert "Traceback" not in done.output + done.stderr, (path, bad)
            assert done.exit_code != 1 or " problem" in done.stdout


@pytest.mark.parametrize(
    ("file", "path", "value", "has_to_be"),
    [
        ("deepspeed.json", "zero_optimization", None, "a section with fields"),
        ("deepspeed.json", "zero_optimization", [], "a section with fields"),
        ("deepspeed.json", "zero_optimization", True, "a section with fields"),
        ("deepspeed.json", "zero_optimization.offload_optimizer", "cpu", "a section with fields"),
        ("deepspeed.json", "zero_optimization.stage", None, "a text or a number"),
        ("deepspeed.json", "zero_optimization.reduce_bucket_size", -1, "a whole number from 1 on"),
        ("deepspeed.json", "bf16", True, "a section with fields"),
        ("deepspeed.json", "bf16", None, "a section with fields"),
        ("deepspeed.json", "bf16.enabled", "four", "true or false"),
        ("deepspeed.json", "optimizer", "AdamW", "a section with fields"),
        ("deepspeed.json", "train_micro_batch_size_per_gpu", 0, "a whole number from 1 on"),
        ("deepspeed.json", "gradient_clipping", -1, "a number from 0 on"),
        ("accelerate.yaml", "num_processes", 0, "a whole number from 1 on"),
        ("accelerate.yaml", "num_processes", "four", "a whole number from 1 on"),
        ("accelerate.yaml", "num_processes", None, "a whole number from 1 on"),
        ("accelerate.yaml", "num_machines", 0, "a whole number from 1 on"),
        ("accelerate.yaml", "num_machines", None, "a whole number from 1 on"),
        ("accelerate.yaml", "fsdp_config", "FULL_SHARD", "a section with fields or null"),
        ("accelerate.yaml", "deepspeed_config", "deepspeed.json", "a section with fields"),
        ("accelerate.yaml", "distributed_type", "four", "one of `NO`"),
        ("accelerate.yaml", "gpu_ids", 0, "a text or null"),
        ("grpo_config.yaml", "num_generations", 0, "a whole number from 2 on"),
        ("grpo_config.yaml", "num_generations", None, "a whole number from 2 on"),
        ("grpo_config.yaml", "per_device_train_batch_size", None, "a whole number from 1 on"),
        ("grpo_config.yaml", "learning_rate", "fast", "a number from 0 on"),
        ("grpo_config.yaml", "bf16", "maybe", "true or false"),
        ("grpo_config.yaml", "max_grad_norm", {}, "a number"),
    ],
)
def test_a_value_of_the_wrong_kind_is_named_once(file, path, value, has_to_be, tmp_path):
    problems = disagreements(read_launch(write(tmp_path, put(file, path, value))))
    here = [one for one in problems if one.where == f"{file}: {path}"]
    assert len(here) == 1, problems
    assert f"but has to be {has_to_be}" in here[0].what
    assert here[0].hint.startswith(f"write {has_to_be}")
    said = str(value).lower() if isinstance(value, bool) else value
    assert f"is `{'null' if value is None else said}`" in here[0].what


def test_an_unquoted_no_is_explained(tmp_path):
    (problem,) = disagreements(
        read_launch(write(tmp_path, put("grpo_config.yaml", "eval_strategy", False)))
    )
    assert problem.what == "is `false`: YAML reads an unquoted `no` as false"
    assert problem.hint == "write 'no', quoted"


@pytest.mark.parametrize("method", ["grpo_config.yaml", "train.yaml"])
def test_two_precisions_at_once_are_refused(method, tmp_path):
    files = put("deepspeed.json", "fp16.enabled", True)
    files[method] = {**files.pop("grpo_config.yaml"), "fp16": True}
    found = {one.where: one.what for one in disagreements(read_launch(write(tmp_path, files)))}
    assert found[f"{method}: fp16"] == "is `true`, and so is bf16: it is refused"
    assert found["deepspeed.json: fp16.enabled"] == "is `true`, and so is bf16.enabled"


def test_a_section_of_a_precision_without_its_switch_means_off(tmp_path):
    (problem,) = disagreements(read_launch(write(tmp_path, put("deepspeed.json", "bf16", {}))))
    assert problem.where == "deepspeed.json: bf16.enabled"
    assert "missing, which means `false`, but the trainer has bf16: `true`" in problem.what


@pytest.mark.parametrize(
    ("text", "good", "bad"),
    [
        ("int", (4, "4", -1), ("four", None, True, 4.5, [])),
        ("int | None", (None, 4), ("four", {})),
        ("float", (4, "2e-5", 0.1), ("fast", None, False)),
        ("bool | None", (True, None, "no", 1), (-1, "maybe", [])),
        ("Optional[str]", (None, "x"), (3, False, {})),
        ("IntervalStrategy | str", ("no",), (False, 3)),
        ("dict[str, Any] | str | None", ({}, "x.json", None), (3, [])),
        ("list[str] | None", ([], "all-linear", None), (3, {})),
    ],
)
def test_types_of_fields_say_what_they_hold(text, good, bad):
    kind = of_type(text)
    assert all(kind.fits(value) for value in good)
    assert not any(kind.fits(value) for value in bad)
    assert of_type("ParallelismConfig | None") is None


@pytest.mark.parametrize(("strategy", "fits"), [("FULL_SHARD", 1), ("1", 1), (1, 1), (0, 0)])
def test_fsdps_strategy_may_be_its_number(strategy, fits, tmp_path):
    """Older versions of `accelerate config` wrote that."""
    fsdp = {"fsdp_version": 1, "fsdp_sharding_strategy": strategy}
    accelerate = {"distributed_type": "FSDP", "num_processes": 2, "fsdp_config": fsdp}
    files = {"sft_config.yaml": {**TRAINER, "gradient_checkpointing": False}}
    problems = disagreements(read_launch(write(tmp_path, files | {"accelerate.yaml": accelerate})))
    where = "accelerate.yaml: fsdp_config.fsdp_sharding_strategy"
    assert [one.where for one in problems] == [where] * (not fits)


def test_kinds_are_of_fields_that_there_are():
    assert {path.split(".")[0] for path in OF_ACCELERATE} <= set(launch_fields().accelerate)


def test_what_deepspeed_refuses_is_named():
    config = pytest.importorskip("deepspeed.runtime.zero.config")
    fields, kinds = {}, deepspeed_kinds(launch_fields())
    for name, field in config.DeepSpeedZeroConfig.model_fields.items():
        fields[field.alias or name] = name
    for name in fields:
        kind = kinds[f"zero_optimization.{name}"]
        for bad in (*BAD, "auto"):
            try:
                config.DeepSpeedZeroConfig(**{name: bad})
            except (ValueError, TypeError, AssertionError):
                refused = True
            else:
                refused = False
            # Whether there is such a stage is asked elsewhere; norms can be left out by some alone.
            if refused and name not in ("stage", "compute_grad_norm"):
                assert not kind.fits(bad), (name, bad)
            if not refused and bad not in ({}, "auto", True):
                assert kind.fits(bad), (name, bad)
