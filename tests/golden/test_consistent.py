"""Bundles agree with themselves, the checks with the libraries whose names they know."""

import json
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from bundle_cases import CASES
from click.testing import CliRunner
from test_consumers import parsed_fields, trl

from autotune.bundle.check.asking import Checked
from autotune.bundle.check.files import DEFAULTS
from autotune.bundle.check.read import read_launch
from autotune.cli import main
from autotune.errors import UserError
from autotune.facts.stack import canonical_name
from autotune.job.methods import METHODS
from tests.guards import ppo_apart
from tests.unit.bundle.check.asking import checked

__all__ = ["trl"]


pytestmark = pytest.mark.usefixtures("quick_checks")


def bundle_in(folder, name):
    """The bundle of a case, in a folder."""
    folder.mkdir()
    for file, text in CASES[name]().files().items():
        (folder / file).write_text(text, encoding="utf-8")
    return folder


def check(*arguments):
    return CliRunner().invoke(main, ["check", *map(str, arguments)])


@pytest.mark.parametrize("name", ppo_apart(CASES))
def test_a_bundle_agrees_with_itself(name, tmp_path):
    folder = bundle_in(tmp_path / "bundle", name)
    assert checked(read_launch(folder)) == Checked(problems=())


def test_fsdp_is_not_emitted_for_cpus():
    case = CASES["fsdp2"]()
    cpu = replace(case.facts, device=replace(case.facts.device, kind="cpu"))
    with pytest.raises(UserError, match="accelerate does FSDP on GPUs alone"):
        replace(case, facts=cpu).files()


def test_a_change_by_hand_is_found(tmp_path):
    folder = bundle_in(tmp_path / "bundle", "zero3")
    file = folder / "sft_config.yaml"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("train_batch_size: 4", "train_batch_size: 2"), encoding="utf-8")
    completed = check(folder)
    assert completed.exit_code == 1
    assert completed.stdout == (
        "deepspeed.json: train_micro_batch_size_per_gpu: is `4`, but the trainer has "
        "per_device_train_batch_size: `2`\n"
        "  hint: make them equal, or leave it to the trainer (`auto`)\n"
        "sft_config.yaml, accelerate.yaml, deepspeed.json: 1 problem\n"
    )
    report = json.loads(check(folder, "--json").stdout)
    assert (report["schema"], report["agree"]) == (1, False)
    assert report["files"] == ["sft_config.yaml", "accelerate.yaml", "deepspeed.json"]
    (problem,) = report["problems"]
    assert problem["where"] == "deepspeed.json: train_micro_batch_size_per_gpu"


def test_files_written_by_hand_are_told_apart_by_what_they_hold(tmp_path):
    accelerate = {
        "distributed_type": "DEEPSPEED",
        "num_processes": 4,
        "deepspeed_config": {"deepspeed_config_file": "/old/place/zero.json"},
    }
    trainer = {"model_name_or_path": "some/model", "bf16": True, "max_grad_norm": 0}
    zero = {"train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": 2}}
    for name, data in (("mine.yml", accelerate), ("train.yaml", trainer)):
        (tmp_path / name).write_text(yaml.safe_dump(data), encoding="utf-8")
    (tmp_path / "zero.json").write_text(json.dumps(zero), encoding="utf-8")
    (tmp_path / "other.yaml").write_text("- a list\n", encoding="utf-8")
    assert check(tmp_path).stdout == "train.yaml, mine.yml, zero.json: agree\n"
    (tmp_path / "second.yaml").write_text("learning_rate: 1\n", encoding="utf-8")
    completed = check(tmp_path)
    assert completed.exit_code == 2
    assert "second.yaml, train.yaml" in completed.stderr
    assert "--trainer FILE" in completed.stderr
    assert check(tmp_path, "--trainer", "train.yaml").exit_code == 0
    groups = check(tmp_path, "--trainer", "train.yaml", "--method", "grpo")
    assert groups.exit_code == 0  # 32 completions, groups of 8


def test_deepspeeds_settings_may_stand_in_the_trainers_file(tmp_path):
    zero = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2}}
    trainer = {"model_name_or_path": "some/model", "max_grad_norm": 0, "deepspeed": zero}
    launch = {"distributed_type": "MULTI_GPU", "num_processes": 2, "mixed_precision": "bf16"}
    for name, data in (("launch.yaml", launch), ("sft_config.yaml", trainer)):
        (tmp_path / name).write_text(yaml.safe_dump(data), encoding="utf-8")
    completed = check(tmp_path)
    assert completed.exit_code == 1
    assert completed.stdout.startswith(
        "sft_config.yaml: deepspeed: train_micro_batch_size_per_gpu: is `2`, but the trainer has "
        "per_device_train_batch_size: `8` (its default)\n"
    )
    assert completed.stdout.endswith("sft_config.yaml: deepspeed: 1 problem\n")


def test_a_file_that_is_named_and_broken_ends_the_check(tmp_path):
    folder = bundle_in(tmp_path / "bundle", "zero3")
    (folder / "deepspeed.json").write_text('{"zero_optimization": ', encoding="utf-8")
    completed = check(folder)
    assert (completed.exit_code, completed.stdout) == (2, "")
    assert "deepspeed.json: cannot be read" in completed.stderr
    assert "hint: correct that place (JSON has no comments" in completed.stderr
    (folder / "deepspeed.json").unlink()
    completed_without = check(folder)
    assert completed_without.exit_code == 1
    assert (
        "deepspeed_config_file: is `deepspeed.json`, and there is no such file"
        in completed_without.stdout
    )


@pytest.mark.parametrize("broken", ["not: [closed", "{", "\t- : x"])
def test_what_cannot_be_read_is_named_with_all_else(broken, tmp_path):
    (tmp_path / "accelerate.yaml").write_text(broken, encoding="utf-8")
    completed = check(tmp_path)
    assert completed.exit_code == 2
    assert "accelerate.yaml: cannot be read" in completed.stderr
    assert "no trainer file was found" in completed.stderr
    assert "Traceback" not in completed.stderr


def test_the_line_of_a_broken_file_is_named(tmp_path):
    folder = bundle_in(tmp_path / "bundle", "zero3")
    (folder / "sft_config.yaml").write_text("bf16: true\n\t- optim: [\n", encoding="utf-8")
    assert "sft_config.yaml: cannot be read: line 2: found character" in check(folder).stderr


def test_folders_that_are_named_as_files_are_passed_over(tmp_path):
    folder = bundle_in(tmp_path / "bundle", "zero3")
    for name in ("old.yaml", "kept.json", "mine.sh"):
        (folder / name).mkdir()
    assert check(folder).exit_code == 0


def test_a_folder_and_a_method_have_to_be_there(tmp_path):
    missing = check(tmp_path / "nowhere")
    assert (missing.exit_code, "no such folder" in missing.stderr) == (2, True)
    completed = check(tmp_path, "--method", "grpoo")
    assert (completed.exit_code, "`grpo`" in completed.stderr) == (2, True)
    completed_with = check(tmp_path, "--deepspeed", "none.json", "--accelerate", "a.yaml")
    assert completed_with.exit_code == 2
    assert "a.yaml" in completed_with.stderr


def test_trls_own_configurations_are_left_alone(trl, tmp_path):
    files = sorted((Path(trl.__file__).parent / "accelerate_configs").glob("*.yaml"))
    assert {"zero3.yaml", "fsdp2.yaml", "multi_gpu.yaml"} <= {file.name for file in files}
    (tmp_path / "train.yaml").write_text("model_name_or_path: some/model\n", encoding="utf-8")
    for file in files:
        (tmp_path / "used.yaml").write_bytes(file.read_bytes())
        output = check(tmp_path).stdout
        if file.name == "single_gpu.yaml":  # which has 8 processes and starts one
            assert "accelerate starts one process, not num_processes: 8" in output
            assert output.endswith("train.yaml, used.yaml: 1 problem\n")
        else:
            assert output == "train.yaml, used.yaml: agree\n", file.name
    # Its wide-spread mistake: a section and a file of DeepSpeed's.
    (tmp_path / "zero.json").write_text('{"zero_optimization": {"stage": 3}}', encoding="utf-8")
    text = (files[0].parent / "zero3.yaml").read_text(encoding="utf-8")
    text_of_both = text.replace(
        "deepspeed_config:", "deepspeed_config:\n  deepspeed_config_file: zero.json"
    )
    (tmp_path / "used.yaml").write_text(text_of_both, encoding="utf-8")
    output = check(tmp_path).stdout
    for name in ("offload_optimizer_device", "zero_stage", "zero3_save_16bit_model"):
        assert f"used.yaml: deepspeed_config.{name}: accelerate refuses it" in output
    assert "used.yaml: mixed_precision: accelerate refuses it" in output


@pytest.mark.parametrize("method", ppo_apart(METHODS))
def test_what_is_left_out_is_what_trl_does(method, trl, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fields = parsed_fields(trl, "output_dir: out\nbf16: false\n", tmp_path, method)
    by_name = {canonical_name(name): value for name, value in fields.items()}
    defaults = {**DEFAULTS, **{n: v for n, v in METHODS[method].defaults.items() if n in DEFAULTS}}
    values = {name: by_name[name] for name in defaults if defaults[name] is not None}
    assert values == {name: value for name, value in defaults.items() if value is not None}
