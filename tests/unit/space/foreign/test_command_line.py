"""Commands are read as flags; nothing of them runs."""

import shlex
from typing import Any

import pytest

from autotune.errors import UserError
from autotune.space.foreign.command_line import parse_command
from autotune.space.foreign.fields import Imported
from autotune.space.foreign.importing import GivenFile, Wishes, import_job
from tests.unit.space.foreign.files import LLAMA_FACTORY, TORCHTUNE, read


def of_command(text: str, *files: str, **wishes: Any) -> Imported:
    command = parse_command(shlex.split(text))
    given = [GivenFile(name=command.files[n], data=read(f)) for n, f in enumerate(files)]
    wishes.setdefault("method", command.method)
    return import_job(given, Wishes(**wishes), command)


TRL = "--model_name_or_path Qwen/Qwen2.5-0.5B --dataset_name trl-lib/Capybara"


def test_trls_command() -> None:
    job = of_command(f"trl dpo {TRL} --use_peft --load_in_4bit --beta=0.2 --learning_rate 5e-7").job
    assert (job["method"], job["tuning"]) == ("dpo", "qlora")
    assert job["training"] == {"beta": 0.2, "learning_rate": 5e-7}
    assert job["global_batch_size"] == 8  # TRL's default, on one device


@pytest.mark.parametrize(
    ("launcher", "devices"),
    [
        ("accelerate launch --num_processes 4 --multi_gpu", 4),
        ("torchrun --nproc_per_node=2 --master_port 29500", 2),
        ("torchrun --nproc_per_node 2 --nnodes 2", 4),
        ("python -m torch.distributed.run --nproc_per_node 3", 3),
        ("deepspeed --num_gpus 8", 8),
        ("CUDA_VISIBLE_DEVICES=0,1 python", 2),
        ("python", 1),
    ],
)
def test_launchers_say_how_many_devices_train(launcher: str, devices: int) -> None:
    text = f"{launcher} train.py {TRL} --per_device_train_batch_size 4 --packing"
    assert of_command(text).job["global_batch_size"] == 4 * devices


def test_flags_go_before_the_file_that_a_command_names() -> None:
    text = "CUDA_VISIBLE_DEVICES=0,1,2,3 llamafactory-cli train my.yaml learning_rate=5e-5"
    job = of_command(text, LLAMA_FACTORY).job
    assert job["global_batch_size"] == 8 * 4
    assert job["training"]["learning_rate"] == 5e-5
    text = "tune run --nproc_per_node 2 lora_finetune_distributed --config my.yaml batch_size=2"
    assert of_command(text, TORCHTUNE).job["global_batch_size"] == 2 * 8 * 2


def test_accelerates_file_may_be_named_too() -> None:
    text = f"accelerate launch --config_file fsdp.yaml sft.py {TRL} --packing"
    launch = "distributed_type: FSDP\nnum_processes: 8\n"
    assert of_command(text, launch).job["devices"] == {"count": 8}


def test_a_command_without_flags_is_refused() -> None:
    with pytest.raises(UserError, match="no flags and no configuration file"):
        parse_command(["ls"])
