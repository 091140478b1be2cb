"""Commands are read as flags; nothing of them runs."""

import shlex
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.errors import UserError
from autotune.space.foreign.command_line import parse_command
from autotune.space.foreign.fields import Imported
from autotune.space.foreign.importing import GivenFile, Wishes, import_job
from tests.unit.space.foreign.files import AXOLOTL, LLAMA_FACTORY, TORCHTUNE, changed, read


def of_command(text: str, *files: str, **wishes: Any) -> Imported:
    command = parse_command(shlex.split(text))
    beside = [GivenFile(name=command.files[n], data=read(f)) for n, f in enumerate(files)]
    wishes.setdefault("method", command.method)
    return import_job(beside, Wishes(**wishes), command)


TRL = "--model_name_or_path Qwen/Qwen2.5-0.5B --dataset_name trl-lib/Capybara"


def test_trls_command() -> None:
    job = of_command(f"trl dpo {TRL} --use_peft --load_in_4bit --beta=0.2 --learning_rate 5e-7").job
    assert (job["method"], job["tuning"]) == ("dpo", "qlora")
    assert job["training"] == {"beta": 0.2, "learning_rate": 5e-7}
    assert job["global_batch_size"] == 8  # TRL's default, on one device


def test_a_bundles_own_command_is_read() -> None:
    """With DeepSpeed Python is started by `env`."""
    program = "--no_python env PYTHONPATH= python3 -u -m trl.scripts.sft"
    flags = "--model_name_or_path m --dataset_name d --per_device_train_batch_size 2"
    imported = of_command(f"accelerate launch --num_processes 2 {program} {flags}")
    assert imported.job["method"] == "sft" and imported.job["model"] == "m"


@pytest.mark.parametrize(
    ("launcher", "devices"),
    [
        ("accelerate launch --num_processes 4 --multi_gpu", 4),
        ("torchrun --nproc_per_node=2 --master_port 29500", 2),
        ("torchrun --nproc_per_node 2 --nnodes 2", 4),
        ("python -m torch.distributed.run --nproc_per_node 3", 3),
        ("deepspeed --num_gpus 8", 8),
        ("CUDA_VISIBLE_DEVICES=0,1 python", 2),
        ("CUDA_VISIBLE_DEVICES=0,1,-1,2 python", 2),
        ("CUDA_VISIBLE_DEVICES=0,1,2,3 accelerate launch --num_processes 2", 2),
        ("CUDA_VISIBLE_DEVICES=0,1,2,3 accelerate launch --num_machines 2", 8),
        ("CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node 4", 4),
        ("CUDA_VISIBLE_DEVICES=0,1 torchrun", 1),  # torchrun's default
        ("CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node gpu", 2),
        ("CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc-per-node=auto --nnodes 2:2", 4),
        ("torchrun --nnodes 3", 3),
        ("NPROC_PER_NODE=8 NNODES=2 torchrun --nproc_per_node 2", 2),
        ("NPROC_PER_NODE=8 NNODES=2 bash", 16),
        ("deepspeed --include localhost:0,1,2,3", 4),
        ("deepspeed --include worker-0:0,1@worker-1:0,1", 4),
        ("deepspeed --num_nodes 2 --num_gpus 4", 8),
        ("accelerate launch --num_processes 8 --parallelism_config_tp_size 2", 4),
        ("python", 1),
    ],
)
def test_launchers_say_how_many_devices_train(launcher: str, devices: int) -> None:
    text = f"{launcher} train.py {TRL} --per_device_train_batch_size 4 --packing"
    assert of_command(text).job["global_batch_size"] == 4 * devices


@pytest.mark.parametrize(
    "before",
    [
        *("uv run", "poetry run", "time", "exec", "nohup", "sudo -E", "numactl -N 0 -m 0", "env"),
        *("conda run -n trl", "singularity exec --nv x.sif", "srun -N 2 --gpus-per-node 8"),
        *(
            "cd there &&",
            "CUDA_VISIBLE_DEVICES=0 uv run --no-sync",
            "sudo -E CUDA_VISIBLE_DEVICES=0",
        ),
    ],
)
@pytest.mark.parametrize(
    ("launcher", "devices"),
    [
        ("accelerate launch --num_processes=4", 4),
        ("accelerate-launch --num_processes 4", 4),
        ("torchrun --nproc_per_node 2", 2),
        ("/opt/bin/deepspeed --num_gpus 8", 8),
        ("python -u -m torch.distributed.run --nproc_per_node 3", 3),
    ],
)
def test_what_starts_a_launcher_hides_nothing(before: str, launcher: str, devices: int) -> None:
    end = "2>&1 > all.log | tee log && rm -r there"
    found = of_command(f"{before} {launcher} train.py {TRL} --packing {end}", method="sft")
    assert found.job["global_batch_size"] == 8 * devices
    assert not {"rm", "tee", "all.log"} & {str(fate.value) for fate in found.fates}


def test_what_starts_a_tools_command_hides_nothing() -> None:
    assert of_command(f"conda run -n trl trl dpo {TRL} --num_processes 4").job["method"] == "dpo"
    start = "uv run python -m axolotl.cli.train c.yaml --launcher torchrun"
    assert (
        of_command(f"sudo -E {start} -- --nproc_per_node=2", AXOLOTL).job["devices"]["count"] == 2
    )
    seen = "CUDA_VISIBLE_DEVICES=0,1 uv run llamafactory-cli train my.yaml"
    assert of_command(seen, LLAMA_FACTORY).job["devices"] == {"count": 2}


@pytest.mark.parametrize("count", ["'$NGPU'", "auto", "gpu", "'$((N*2))'"])
@pytest.mark.parametrize("flag", ["torchrun --nproc_per_node", "accelerate launch --num_processes"])
def test_a_count_that_is_no_number_is_named(flag: str, count: str) -> None:
    found = of_command(f"{flag}={count} train.py {TRL} --packing")
    text = count.strip("'")
    assert any("nothing says how many" in line and text in line for line in found.assumed)
    assert "count" not in found.job.get("devices", {})
    seen = of_command(f"CUDA_VISIBLE_DEVICES=0,1 {flag}={count} train.py {TRL} --packing")
    assert any("devices: 2" in line and text in line for line in seen.assumed)


def test_accumulation_of_accelerate_is_deepspeeds_alone() -> None:
    start = "accelerate launch --num_processes 2 --gradient_accumulation_steps 8"
    rows = f"{TRL} --packing --gradient_accumulation_steps 2"
    found = of_command(f"{start} train.py {rows}")
    assert found.job["global_batch_size"] == 8 * 2 * 2
    assert {f.kind for f in found.fates if f.field == "--gradient_accumulation_steps"} == {"left"}
    with pytest.raises(UserError, match="DeepSpeed's file says 8"):
        of_command(f"{start} --use_deepspeed train.py {rows}")


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


ON_TWO = "num_machines: 2\nnum_processes: 16\ndistributed_type: MULTI_GPU\n"
SEEN = "CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7"


def test_the_devices_that_are_seen_say_least() -> None:
    rows = f"{TRL} --packing --per_device_train_batch_size 4 --gradient_accumulation_steps 2"
    job = of_command(f"{SEEN} accelerate launch --config_file a.yaml train.py {rows}", ON_TWO).job
    assert job["global_batch_size"] == 4 * 2 * 16
    assert job["devices"] == {"count": 8, "nodes": 2}


def test_a_commands_machines_go_before_a_files() -> None:
    start = "accelerate launch --num_machines 1 --config_file a.yaml train.py"
    job = of_command(f"{start} {TRL} --packing", ON_TWO).job
    assert job["devices"] == {"count": 16}


@pytest.mark.parametrize("seen", ["", f"{SEEN},8 "])
def test_llama_factorys_variables(seen: str) -> None:
    start = f"{seen}NNODES=2 NPROC_PER_NODE=8 FORCE_TORCHRUN=1 llamafactory-cli train my.yaml"
    job = of_command(start, LLAMA_FACTORY).job
    assert job["global_batch_size"] == 8 * 16
    assert job["devices"] == {"count": 8, "nodes": 2}


def test_processes_of_each_machine_are_multiplied_by_the_machines_once() -> None:
    start = f"torchrun --nproc_per_node 8 train.py {TRL} --packing"
    found = of_command(start, nodes=2)
    assert found.job["devices"] == {"count": 8, "nodes": 2}
    assert found.job["global_batch_size"] == 8 * 16
    open_ = of_command(f"accelerate launch --num_machines 2 train.py {TRL} --packing")
    assert (open_.job["global_batch_size"], open_.job["devices"]["nodes"]) == (8 * 2, 2)
    assert any("devices: 1 on each of 2 machines" in text for text in open_.assumed)
    elastic = of_command(f"torchrun --nnodes 1:4 train.py {TRL} --packing")
    assert any("`--nnodes 1:4` leaves it open" in text for text in elastic.assumed)


@pytest.mark.parametrize(
    ("end", "devices"),
    [
        ("--num_processes 4", 4),
        ("--num-processes 4 --num_machines 2", 4),
        ("--accelerate_config zero3", 8),
        ("--accelerate_config zero3 --num_processes 2", 2),
    ],
)
def test_trl_takes_its_launchers_flags(end: str, devices: int) -> None:
    found = of_command(f"trl sft {TRL} {end}")
    assert found.job["global_batch_size"] == 8 * devices
    assert "unknown" not in {fate.kind for fate in found.fates}


def test_a_script_may_mean_something_else_by_such_a_flag() -> None:
    found = of_command(f"python train.py {TRL} --packing --num_processes 4")
    assert found.job["global_batch_size"] == 8
    assert any("devices: 1 (nothing says how many" in text for text in found.assumed)
    assert {f.kind for f in found.fates if f.field == "num_processes"} == {"unknown"}


@pytest.mark.parametrize(
    ("end", "devices"),
    [
        ("--num-processes 4", 4),
        ("--launcher torchrun -- --nproc_per_node=2", 2),
        ("--launcher=torchrun -- --nproc_per_node=2 --nnodes=2", 4),
        ("-- --num_processes 6", 6),
        ("--launcher torchrun --nproc_per_node 2", 2),
        ("--launcher torchrun", 1),
        ("--launcher python --num-processes 4", 1),
    ],
)
def test_axolotl_takes_its_launchers_flags(end: str, devices: int) -> None:
    """As Axolotl 0.19 hands them on: those that are none of its own need no `--` before them."""
    found = of_command(f"axolotl train c.yaml {end}", AXOLOTL)
    assert found.job["global_batch_size"] == 4 * devices
    assert "" not in {fate.field for fate in found.fates}
    left = {fate.detail for fate in found.fates if fate.field == "--num_processes"}
    assert left == {"nothing (`--launcher python` starts one process)"} or "python" not in end


def test_axolotls_module_starts_as_its_launcher_says() -> None:
    command = "accelerate launch --num_processes 4 -m axolotl.cli.train c.yaml --micro_batch_size=2"
    assert of_command(command, AXOLOTL).job["global_batch_size"] == 4 * 4


def test_of_a_secret_nothing_is_kept() -> None:
    start = "WANDB_API_KEY=abc123 env_=1 HF_TOKEN=abc123 trl sft"
    found = of_command(f"{start} {TRL} --hub_token abc123 --api_key abc123 --eos_token '<end>'")
    assert "abc123" not in repr(found)
    assert found.job["training"]["eos_token"] == "<end>"
    assert {f.value for f in found.fates if f.field in ("hub_token", "HF_TOKEN")} == {"***"}


COUNTS = st.integers(min_value=1, max_value=8)


@settings(deadline=None)
@given(
    form=st.sampled_from(["file", "accelerate", "torchrun", "deepspeed", "variables"]),
    micro=COUNTS,
    steps=COUNTS,
    machines=st.integers(1, 4),
    each=COUNTS,
    seen=st.integers(0, 8),
)
def test_the_global_batch_is_the_product_whatever_starts_it(
    form: str, micro: int, steps: int, machines: int, each: int, seen: int
) -> None:
    lines = [f"per_device_train_batch_size: {micro}", f"gradient_accumulation_steps: {steps}"]
    text = changed(LLAMA_FACTORY, lines, without=[line.partition(":")[0] for line in lines])
    total = machines * each
    launch = f"distributed_type: MULTI_GPU\nnum_machines: {machines}\nnum_processes: {total}\n"
    start = {
        "file": "accelerate launch --config_file a.yaml train.py",
        "accelerate": f"accelerate launch --num_processes={total} --num_machines={machines} t.py",
        "torchrun": f"torchrun --nproc_per_node {each} --nnodes {machines} train.py",
        "deepspeed": f"deepspeed --num_gpus {each} --num_nodes={machines} train.py",
        "variables": f"NNODES={machines} NPROC_PER_NODE={each} llamafactory-cli train",
    }[form]
    visible = f"CUDA_VISIBLE_DEVICES={','.join(map(str, range(seen)))} " if seen else ""
    files = [launch, text] if form == "file" else [text]
    job = of_command(f"{visible}{start} my.yaml", *files).job
    assert job["global_batch_size"] == micro * steps * total
    assert (job["devices"]["count"], job["devices"].get("nodes", 1)) == (each, machines)


def test_a_command_without_flags_is_refused() -> None:
    with pytest.raises(UserError, match="no flags and no configuration file"):
        parse_command(["ls"])
