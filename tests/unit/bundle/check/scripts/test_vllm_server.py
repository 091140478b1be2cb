"""Bundles by hand with a vLLM server: what is wrong between it and the training."""

import json

import pytest
import yaml
from click.testing import CliRunner

from autotune.bundle.check.scripts.shell import started
from autotune.cli import main

TRAINER = {
    "model_name_or_path": "some/model",
    "use_vllm": True,
    "vllm_mode": "server",
    "num_generations": 8,
    "per_device_train_batch_size": 8,
    "bf16": True,
}
ACCELERATE = {
    "distributed_type": "MULTI_GPU",
    "mixed_precision": "bf16",
    "num_processes": 4,
    "num_machines": 1,
}
SERVE = "CUDA_VISIBLE_DEVICES=4,5 trl vllm-serve --model some/model --tensor_parallel_size 2\n"
START = "accelerate launch --config_file accelerate.yaml"
LAUNCH = f"export CUDA_VISIBLE_DEVICES=0,1,2,3\n{START} grpo.py\n"


def said(folder, scripts, trainer=None, accelerate=None):
    """(Exit code, output) of `autotune check` on a folder with these files."""
    files = {"grpo_config.yaml": {**TRAINER, **(trainer or {})}}
    files["accelerate.yaml"] = {**ACCELERATE, **(accelerate or {})}
    for name, data in files.items():
        told = {field: value for field, value in data.items() if value is not None}
        (folder / name).write_text(yaml.safe_dump(told), encoding="utf-8")
    for name, text in scripts.items():
        (folder / name).write_text(text, encoding="utf-8")
    done = CliRunner().invoke(main, ["check", str(folder)])
    assert done.stderr == ""
    return done.exit_code, done.stdout


def test_a_server_with_gpus_of_its_own_is_left_alone(tmp_path):
    code, text = said(tmp_path, {"serve.sh": SERVE, "train.sh": LAUNCH})
    assert (code, text) == (0, "grpo_config.yaml, accelerate.yaml: agree\n")


@pytest.mark.parametrize(
    ("serve", "launch", "accelerate", "both"),
    [
        (
            SERVE.replace("4,5", "3,4"),
            LAUNCH,
            {},
            "GPU 3,4, the training GPU 0,1,2,3 (train.sh): 3",
        ),
        (SERVE, LAUNCH.replace("0,1,2,3", "2,3,4,5"), {}, "2,3,4,5 (train.sh): 4,5"),
        (
            SERVE,
            f"{START} grpo.py\n",
            {"gpu_ids": "2,3,4,5"},
            "2,3,4,5 (gpu_ids, train.sh): 4,5",
        ),
        (
            SERVE,
            f"{START} --gpu_ids 5,6,7,8 grpo.py\n",
            {},
            "5,6,7,8 (gpu_ids, train.sh): 5",
        ),
        # Where nothing names any, accelerate takes the first ones; so does vLLM.
        (
            SERVE.replace("4,5", "0,1"),
            f"{START} grpo.py\n",
            {},
            "(train.sh: the first of all): 0,1",
        ),
        (
            "trl vllm-serve --model some/model\n",
            LAUNCH,
            {},
            "the server has GPU 0, the training GPU 0",
        ),
        (
            SERVE,
            f"{START} --num_processes 5 grpo.py\n",
            {"num_processes": 5},
            "0,1,2,3,4 (train.sh: the first",
        ),
    ],
)
def test_no_gpu_trains_and_generates(serve, launch, accelerate, both, tmp_path):
    scripts = {"serve.sh": serve, "train.sh": launch}
    code, text = said(tmp_path, scripts, accelerate=accelerate)
    assert code == 1
    assert text.startswith("serve.sh: CUDA_VISIBLE_DEVICES: ")
    assert both in text and "would do both" in text
    assert text.endswith("accelerate.yaml: 1 problem\n")


def test_both_may_be_started_by_one_script(tmp_path):
    text = (
        "CUDA_VISIBLE_DEVICES=0,1 vllm serve some/model -tp 2 \\\n"
        '    --weight-transfer-config \'{"backend": "nccl"}\' &\n'
        "sleep 60; CUDA_VISIBLE_DEVICES=1,2,3,4 accelerate launch "
        "--config_file accelerate.yaml grpo.py\n"
    )
    code, out = said(tmp_path, {"all.slurm": text})
    assert (code, "GPU 0,1, the training GPU 1,2,3,4 (all.slurm): 1 would" in out) == (1, True)
    apart = text.replace("=1,2,3,4", "=2,3,4,5")
    assert said(tmp_path, {"all.slurm": apart})[0] == 0


@pytest.mark.parametrize(
    ("serve", "trainer", "where", "what"),
    [
        (
            SERVE.replace("size 2", "size 4"),
            {},
            "serve.sh: --tensor-parallel-size",
            "names 2 (4,5)\n",
        ),
        (
            SERVE.replace("_size 2", "_size=1"),
            {},
            "serve.sh: --tensor-parallel-size",
            "the others stay idle",
        ),
        (SERVE, {"vllm_mode": "colocate"}, "grpo_config.yaml: vllm_mode", "nobody asks the server"),
        (SERVE, {"use_vllm": None}, "grpo_config.yaml: vllm_mode", "use_vllm: not there"),
        (
            SERVE,
            {"vllm_server_port": 9000},
            "grpo_config.yaml: vllm_server_port",
            "listens on 8000",
        ),
        (
            SERVE.replace("--model", "--port 8001 --model"),
            {"vllm_server_base_url": "http://gpu-box:8000"},
            "grpo_config.yaml: vllm_server_base_url",
            "asks port 8000, but serve.sh listens on 8001",
        ),
        (
            SERVE.replace("some/model", "other"),
            {},
            "serve.sh",
            "serves other, but grpo_config.yaml",
        ),
        (
            "CUDA_VISIBLE_DEVICES=4 vllm serve some/model --max-model-len 2048\n",
            {},
            "serve.sh: --weight-transfer-config",
            "cannot send its weights",
        ),
    ],
)
def test_what_a_server_needs_is_named(serve, trainer, where, what, tmp_path):
    code, text = said(tmp_path, {"serve.sh": serve, "train.sh": LAUNCH}, trainer)
    assert code == 1
    assert text.startswith(f"{where}: ") and what in text
    assert text.endswith(": 1 problem\n")


@pytest.mark.parametrize(
    "serve",
    [
        "CUDA_VISIBLE_DEVICES=$MINE trl vllm-serve --model $MODEL --tensor_parallel_size $SIZE\n",
        "export CUDA_VISIBLE_DEVICES=$(free_gpus)\ntrl vllm-serve --model some/model\n",
        "# CUDA_VISIBLE_DEVICES=0 trl vllm-serve --model some/model\n",
        "echo trl vllm-serve comes first, on CUDA_VISIBLE_DEVICES=0\n",
        "if [ -z 'a quotation\nthat goes on' ]; then\n  exit 1\nfi\n",
    ],
)
def test_what_is_not_told_in_so_many_words_is_no_problem(serve, tmp_path):
    assert said(tmp_path, {"serve.sh": serve, "train.sh": LAUNCH})[0] == 0


def test_on_cpus_no_gpu_trains(tmp_path):
    base = {"use_cpu": True, "distributed_type": "MULTI_CPU", "mixed_precision": "no"}
    trainer = {"bf16": False}
    scripts = {"serve.sh": SERVE.replace("4,5", "0,1"), "train.sh": f"{START} grpo.py\n"}
    assert said(tmp_path, scripts, trainer, base)[0] == 0


def test_a_set_variable_holds_for_its_command_alone():
    text = "export CUDA_VISIBLE_DEVICES=7\nCUDA_VISIBLE_DEVICES=1 torchrun a.py\ntorchrun b.py\n"
    assert [one.gpus for one in started("x.sh", text)] == [("1",), ("7",)]
    default = 'export CUDA_VISIBLE_DEVICES="${CUDA_VISIBLE_DEVICES:-0,1}"\ntrl grpo --config x\n'
    assert [one.gpus for one in started("x.sh", default)] == [("0", "1")]
    assert json.dumps(started("x.sh", "trl grpo --a-b 1 --c=$x -tp 3 -1\n")[0].flags) == (
        '{"a-b": "1", "c": null, "tensor-parallel-size": "3"}'
    )
