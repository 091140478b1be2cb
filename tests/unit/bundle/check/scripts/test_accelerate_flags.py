"""Bundles by hand whose scripts say another thing than their files."""

import json

import pytest
import yaml
from click.testing import CliRunner

from autotune.bundle.check.scripts.flags import OF_ACCELERATE, SWITCHES
from autotune.bundle.check.scripts.shell import started
from autotune.cli import main

TRAINER = {
    "model_name_or_path": "some/model",
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "bf16": True,
    "max_grad_norm": 1.0,
}
GPUS = {"distributed_type": "MULTI_GPU", "mixed_precision": "bf16", "num_processes": 4}
ZERO = {
    "distributed_type": "DEEPSPEED",
    "num_processes": 4,
    "deepspeed_config": {"deepspeed_config_file": "deepspeed.json", "zero3_init_flag": False},
}
DEEPSPEED = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 4,
    "gradient_clipping": 1.0,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2},
}
START = "accelerate launch --config_file accelerate.yaml"
TRAINS = "-m trl.scripts.sft --config sft_config.yaml"


def said(folder, script, accelerate=GPUS, trainer=None, deepspeed=None):
    """What `autotune check` says of a folder with these files, line by line, without hints."""
    if deepspeed is None and accelerate["distributed_type"] == "DEEPSPEED":
        deepspeed = DEEPSPEED
    files = {"sft_config.yaml": {**TRAINER, **(trainer or {})}, "accelerate.yaml": accelerate}
    for name, data in files.items():
        told = {field: value for field, value in data.items() if value is not None}
        (folder / name).write_text(yaml.safe_dump(told), encoding="utf-8")
    if deepspeed:
        (folder / "deepspeed.json").write_text(json.dumps(deepspeed), encoding="utf-8")
    (folder / "launch.sh").write_text(script, encoding="utf-8")
    done = CliRunner().invoke(main, ["check", str(folder)])
    assert done.stderr == ""
    lines = [line for line in done.stdout.splitlines() if not line.startswith("  hint: ")]
    assert done.exit_code == (len(lines) > 1)
    return lines[:-1]


@pytest.mark.parametrize(
    "script",
    [
        f"{START} {TRAINS}\n",
        f"{START} --multi_gpu --num_processes 4 --mixed_precision bf16 {TRAINS}\n",
        f"{START} --num-processes=4 --machine_rank $RANK {TRAINS} --bf16 true --max_steps 10\n",
        f'{START} --num_processes "$(nvidia-smi -L | wc -l)" {TRAINS} --bf16 "$@"\n',
        f"accelerate launch $FLAGS {TRAINS}\n",
        "trl sft --config sft_config.yaml --accelerate_config ./accelerate.yaml --num_machines 1\n",
        "accelerate launch --config_file other.yaml --num_processes 8 train.py --bf16 false\n",
        f"echo {START} --num_processes 8 {TRAINS}\n",
        f"{START} --num_processes ${{COUNT:-8}} {TRAINS}\n",
        f"{START} train.py sft_config.yaml\n",
        # Another command does read them.
        f"{START} {TRAINS}\naccelerate launch evaluate.py --split test\ntrl sft --max_steps 1\n",
        f"{START} -m trl.scripts.sft --output_dir ${{MODEL##*/}} --config sft_config.yaml\n",
        f'{START} -m trl.scripts.sft --bf16 "${{ARGS[@]}}"\n',
        f"# don't {START} --num_processes 8 {TRAINS}\n#don't {START} --num_processes 8 {TRAINS}\n",
        f"{START} {TRAINS}  # --num_processes 8; {START} --num_processes 8 {TRAINS}\n",
    ],
)
def test_scripts_that_say_the_same_or_nothing_in_so_many_words_are_left_alone(script, tmp_path):
    assert said(tmp_path, script) == []


@pytest.mark.parametrize(
    ("flags", "where", "what"),
    [
        ("--num_processes 8", "--num_processes", "`8`, but accelerate.yaml has num_processes: `4`"),
        ("--num-processes=8", "--num_processes", "num_processes: `4`: the flag wins"),
        ("--mixed_precision fp16", "--mixed_precision", "mixed_precision: `bf16`: the flag wins"),
        ("--use_deepspeed", "--use_deepspeed", "distributed_type: `MULTI_GPU`: the flag wins"),
        ("--use_fsdp", "--use_fsdp", "distributed_type: `MULTI_GPU`: the flag wins"),
        ("--cpu", "--cpu", "starts one process on the CPU"),
        ("--multi_gpu --use_fsdp", "--use_fsdp", "stands beside --multi_gpu"),
        ("--zero_stage 3", "--zero_stage", "does nothing: the launch is one of MULTI_GPU"),
        (
            "--gradient_accumulation_steps 8",
            "--gradient_accumulation_steps",
            "does nothing: the launch is one of MULTI_GPU, and the trainer has "
            "gradient_accumulation_steps: `4`",
        ),
        ("--deepspeed_config_file ds.json", "--deepspeed_config_file", "nobody reads it"),
    ],
)
def test_a_flag_of_accelerate_that_overrules_its_file_is_named(flags, where, what, tmp_path):
    (line,) = said(tmp_path, f"{START} {flags} {TRAINS}\n")
    assert line.startswith(f"launch.sh: {where}: ")
    assert what in line


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        ("--multi_gpu", "distributed_type: `DEEPSPEED`: the flag wins"),
        ("--zero_stage 3", "`3`, but deepspeed.json has zero_optimization.stage: `2`: the file"),
        (
            "--offload_optimizer_device cpu",
            "zero_optimization.offload_optimizer.device: not there: the file wins",
        ),
        ("--gradient_accumulation_steps 8", "gradient_accumulation_steps: `4`: the file wins"),
        ("--deepspeed_config_file /else/where.json", "deepspeed_config_file: `deepspeed.json`"),
        ("--mixed_precision fp16", "the trainer computes in `bf16`: the trainer's own wins"),
        ("--zero3_init_flag true", "deepspeed_config.zero3_init_flag: `false`: the flag wins"),
    ],
)
def test_flags_of_deepspeed_are_held_against_who_wins(flags, what, tmp_path):
    (line,) = said(tmp_path, f"{START} {flags} {TRAINS}\n", ZERO)
    assert line.startswith(f"launch.sh: {flags.split()[0]}: ")
    assert what in line


def test_flags_that_say_what_deepspeeds_file_does_are_left_alone(tmp_path):
    flags = '--use_deepspeed --zero_stage 2 --deepspeed_config_file "$here/deepspeed.json"'
    assert said(tmp_path, f"{START} {flags} {TRAINS}\n", ZERO) == []


def test_accelerate_puts_its_flag_in_the_place_of_auto(tmp_path):
    auto = {**DEEPSPEED, "gradient_accumulation_steps": "auto"}
    script = f"{START} --gradient_accumulation_steps 8 {TRAINS}\n"
    (line,) = said(tmp_path, script, ZERO, deepspeed=auto)
    assert "`8`, takes the place of `auto` in deepspeed.json, but the trainer has " in line


@pytest.mark.parametrize(
    ("flags", "where", "what"),
    [
        (
            "--per_device_train_batch_size 4",
            "--per_device_train_batch_size",
            "`4`, but sft_config.yaml has per_device_train_batch_size: `2`: the flag wins",
        ),
        ("--gradient_accumulation_steps=1", "--gradient_accumulation_steps", "`4`: the flag wins"),
        ("--bf16 false", "--bf16", "`false`, but sft_config.yaml has bf16: `true`"),
        ("--no_bf16", "--no_bf16", "`false`, but sft_config.yaml has bf16: `true`"),
        ("--deepspeed ds.json", "--deepspeed", "`ds.json`, but sft_config.yaml has deepspeed: `a/"),
    ],
)
@pytest.mark.parametrize("start", [f"{START} {TRAINS}", "trl"])
def test_a_flag_of_the_trainer_that_overrules_its_file_is_named(
    start, flags, where, what, tmp_path
):
    if start == "trl":
        start = "trl sft --config sft_config.yaml --accelerate_config accelerate.yaml"
    trainer = {"deepspeed": "a/deepspeed.json"} if "--deepspeed" in flags else {}
    accelerate = {**GPUS, "mixed_precision": None}
    files = {"deepspeed": DEEPSPEED} if trainer else {}
    (line,) = said(tmp_path, f"{start} {flags}\n", accelerate, trainer, **files)
    assert line.startswith(f"launch.sh: {where}: ")
    assert what in line


def test_what_a_flag_alone_says_counts_as_if_a_file_did(tmp_path):
    lacks = {"per_device_train_batch_size": None}
    script = f"{START} {TRAINS} --per_device_train_batch_size 4\n"
    (line,) = said(tmp_path, script, ZERO, lacks)
    assert line == (
        "deepspeed.json: train_micro_batch_size_per_gpu: is `2`, but the trainer has "
        "per_device_train_batch_size: `4`"
    )
    assert said(tmp_path, script.replace("4\n", "2\n"), ZERO, lacks) == []
    alone = {**ZERO, "num_processes": None, "deepspeed_config": {}}
    flags = "--num_processes 4 --deepspeed_config_file $here/deepspeed.json"
    assert said(tmp_path, f"{START} {flags} {TRAINS}\n", alone) == []
    (line,) = said(tmp_path, f"{START} --num_processes 4 {TRAINS} --deepspeed x.json\n", ZERO)
    assert line.startswith("launch.sh: --deepspeed: is `x.json`, and accelerate.yaml names one")


def test_flags_of_accelerate_are_held_against_those_of_the_trainer(tmp_path):
    silent = {"bf16": None, "gradient_accumulation_steps": None}
    gpus = {**GPUS, "mixed_precision": None}
    flags = "--mixed_precision fp16 --gradient_accumulation_steps 8"
    script = f"{START} {flags} {TRAINS} --fp16 --gradient_accumulation_steps 8\n"
    assert said(tmp_path, script, gpus, silent) == []
    precision, steps = said(tmp_path, f"{START} {flags} {TRAINS} --fp16 false\n", gpus, silent)
    assert "but the trainer computes in `bf16`" in precision
    assert "and the trainer has gradient_accumulation_steps: `1`" in steps


def test_how_many_processes_has_to_be_said_somewhere(tmp_path):
    alone = {**GPUS, "num_processes": None}
    (line,) = said(tmp_path, f"{START} {TRAINS}\n", alone)
    assert line.startswith("accelerate.yaml: num_processes: is not there, and no command says it")
    assert said(tmp_path, f"{START} --num_processes $COUNT {TRAINS}\n", alone) == []


def test_files_that_no_command_reads_are_named(tmp_path):
    (line,) = said(tmp_path, "accelerate launch train.py\n")
    assert line == "launch.sh: --config_file: is not there, so nobody reads accelerate.yaml"
    launch, config = said(tmp_path, "trl sft --num_processes 4\n")
    assert launch == "launch.sh: --accelerate_config: is not there, so nobody reads accelerate.yaml"
    assert config == "launch.sh: --config: is not there, so nobody reads sft_config.yaml"
    # `trl` looks into the trainer's file, too.
    named = {"accelerate_config": "accelerate.yaml"}
    assert said(tmp_path, "trl sft --config sft_config.yaml\n", trainer=named) == []


@pytest.mark.parametrize(
    ("script", "accelerate", "line"),
    [
        (
            f"export CUDA_VISIBLE_DEVICES=0,1\n{START} {TRAINS}\n",
            {},
            "launch.sh: CUDA_VISIBLE_DEVICES: names 2 GPUs (0,1), but this machine starts 4",
        ),
        (
            f"CUDA_VISIBLE_DEVICES=0,1,-1,2,3 {START} {TRAINS}\n",
            {},
            "launch.sh: CUDA_VISIBLE_DEVICES: names 2 GPUs (0,1), but",
        ),
        (
            f"MINE=0,1,2\nexport CUDA_VISIBLE_DEVICES=$MINE\n{START} {TRAINS}\n",
            {},
            "launch.sh: CUDA_VISIBLE_DEVICES: names 3 GPUs (0,1,2), but",
        ),
        (f"{START} --gpu_ids 3 {TRAINS}\n", {}, "launch.sh: --gpu_ids: names 1 GPU (3), but"),
        (f"{START} {TRAINS}\n", {"gpu_ids": "0,1"}, "accelerate.yaml: gpu_ids: names 2 GPUs"),
        ("true\n", {"gpu_ids": "0,1"}, "accelerate.yaml: gpu_ids: names 2 GPUs (0,1), but"),
        (
            f"CUDA_VISIBLE_DEVICES=4,5,6,7 {START} {TRAINS}\n",
            {"gpu_ids": "0,1,2,3"},
            "launch.sh: CUDA_VISIBLE_DEVICES: names GPU 4,5,6,7, but accelerate.yaml: gpu_ids",
        ),
    ],
)
def test_each_process_of_a_machine_wants_a_gpu(script, accelerate, line, tmp_path):
    (found,) = said(tmp_path, script, {**GPUS, **accelerate})
    assert found.startswith(line)


@pytest.mark.parametrize(
    ("script", "accelerate"),
    [
        (f"CUDA_VISIBLE_DEVICES=0,1 {START} {TRAINS}\n", {"num_machines": 2}),
        (f"CUDA_VISIBLE_DEVICES=0,1 {START} --num_machines $N {TRAINS}\n", {}),
        (f"CUDA_VISIBLE_DEVICES=$MINE {START} {TRAINS}\n", {}),
        (f"CUDA_VISIBLE_DEVICES=0,1 {START} {TRAINS}\n", {"use_cpu": True}),
        (f"{START} {TRAINS}\n", {"gpu_ids": "all"}),
    ],
)
def test_gpus_that_suffice_or_are_not_told_are_left_alone(script, accelerate, tmp_path):
    assert said(tmp_path, script, {**GPUS, **accelerate}) == []


def test_a_variable_is_known_where_one_line_sets_it():
    def processes(text):
        (one,) = started("x.sh", f"{text}\naccelerate launch --num_processes $N --quiet a.py\n")
        return one.told.launch["num_processes"]

    assert processes("N=8  # all of them") == "8"
    assert processes("export N='8'") == "8"
    assert processes("N=8\nif true; then N=4; fi") == "$N"
    assert processes("for N in 1 2; do") == "$N"
    assert processes("N=$(free)") == "$N"


def test_a_number_that_the_file_leaves_to_the_command_is_no_disagreement(tmp_path):
    left = {**GPUS, "num_processes": -1}
    assert said(tmp_path, f"{START} --num_processes 4 {TRAINS}\n", left) == []
    (line,) = said(tmp_path, f"{START} {TRAINS}\n", left)
    assert line.startswith("accelerate.yaml: num_processes: is `-1`, but has to be a whole number")


@pytest.mark.parametrize(
    ("flags", "merged"),
    [
        ((), {"num_processes": 4, "multi_gpu": True, "mixed_precision": "bf16"}),
        (("--num_processes", "8"), {"num_processes": 8}),
        (("--mixed_precision", "fp16"), {"mixed_precision": "fp16"}),
        (("--gpu_ids", "0,1"), {"gpu_ids": "0,1"}),
        (("--use_deepspeed",), {"use_deepspeed": True, "multi_gpu": False}),
        (("--deepspeed_config_file", "b.json"), {"deepspeed_config_file": "b.json"}),
        (("--multi_gpu", "--use_fsdp"), "only use one of"),
    ],
)
def test_accelerate_itself_lets_its_flags_win(flags, merged, tmp_path):
    launch = pytest.importorskip("accelerate.commands.launch")
    file = tmp_path / "accelerate.yaml"
    own = {"deepspeed_config": {"deepspeed_config_file": "a.json"}, "gpu_ids": "0,1,2,3"}
    file.write_text(yaml.safe_dump({**GPUS, **own}), encoding="utf-8")
    asked = launch.launch_command_parser().parse_args(["--config_file", str(file), *flags, "x.py"])
    if isinstance(merged, str):
        with pytest.raises(ValueError, match=merged):
            launch._validate_launch_command(asked)
        return
    made, _, _ = launch._validate_launch_command(asked)
    assert {name: getattr(made, name) for name in merged} == merged


def test_accelerate_itself_lets_deepspeeds_file_win(tmp_path, monkeypatch):
    pytest.importorskip("deepspeed")
    from accelerate.utils import DeepSpeedPlugin

    zero = {"stage": 2, "offload_param": {"device": "none"}}
    told = {"gradient_accumulation_steps": 4, "gradient_clipping": "auto"}
    file = tmp_path / "deepspeed.json"
    file.write_text(json.dumps({**told, "zero_optimization": zero}), encoding="utf-8")
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_ZERO_STAGE", "3")
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "8")
    monkeypatch.setenv("ACCELERATE_GRADIENT_CLIPPING", "0.5")
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", "cpu")
    made = DeepSpeedPlugin(hf_ds_config=str(file)).deepspeed_config
    assert made["zero_optimization"] == zero
    assert (made["gradient_accumulation_steps"], made["gradient_clipping"]) == (4, 0.5)


def test_accelerates_flags_are_the_ones_that_there_are():
    launch = pytest.importorskip("accelerate.commands.launch")
    actions = launch.launch_command_parser()._actions
    switches = {
        name.lstrip("-").replace("-", "_")
        for action in actions
        for name in action.option_strings
        if action.nargs == 0
    }
    known = {name.lstrip("-") for action in actions for name in action.option_strings}
    assert switches == SWITCHES
    assert known >= OF_ACCELERATE
