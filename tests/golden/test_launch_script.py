"""`launch.sh`, really run, with an interpreter that only tells how it was called."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from bundle_cases import CASES

SPY = """\
#!{python}
import json, os, sys
names = ("CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "PYTORCH_CUDA_ALLOC_CONF")
variables = {{name: os.environ[name] for name in names if name in os.environ}}
print(json.dumps({{"argv": sys.argv[1:], "environment": variables, "spy": sys.argv[0]}}))
"""


@pytest.fixture
def spy(nasty_dir: Path) -> Path:
    """An interpreter with a name that wants quoting."""
    return make_spy(nasty_dir / "python")


def make_spy(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(SPY.format(python=sys.executable), encoding="utf-8")
    path.chmod(0o755)
    return path


def bundle(folder: Path, name: str = "cpu_full", **changes) -> Path:
    """The launch script of a case, in a folder of its own."""
    case = CASES[name]()
    folder.mkdir()
    for file, text in type(case)(**{**vars(case), **changes}).files().items():
        (folder / file).write_text(text, encoding="utf-8")
    return folder / "launch.sh"


def launch(script: Path, *arguments: str, cwd: Path, **environment: str):
    """Run the script; what its interpreter saw, or the failed process."""
    variables = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
    completed = subprocess.run(
        ["bash", str(script), *arguments],
        cwd=cwd,
        env={**variables, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return json.loads(completed.stdout) if completed.returncode == 0 else completed


def expected(folder: Path, *arguments: str, threads: int = 6) -> list[str]:
    """What the interpreter has to be called with."""
    return [
        *("-m", "accelerate.commands.launch"),
        *("--config_file", str(folder / "accelerate.yaml")),
        *("--num_cpu_threads_per_process", str(threads)),
        *("-m", "trl.scripts.sft", "--config", str(folder / "sft_config.yaml")),
        *arguments,
    ]


@pytest.mark.parametrize("name", CASES)
def test_every_launch_script_is_sound_bash(name, tmp_path):
    folder = bundle(tmp_path / "bundle", name).parent
    for script in (path for path in folder.iterdir() if path.suffix in (".sh", ".slurm")):
        checked = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True)
        assert (checked.returncode, checked.stderr) == (0, "")


def test_arguments_arrive_unsplit_from_any_folder(nasty_dir, spy, tmp_path):
    folder = nasty_dir / "bundle"
    arguments = ("--max_steps", "3", "--run_name", "a 'b' \"c\" $d *")
    call = launch(bundle(folder), *arguments, cwd=tmp_path, PYTHON=str(spy))
    assert call["argv"] == expected(folder, *arguments)
    assert call["environment"] == {}


def test_the_script_finds_its_files_by_a_relative_name(nasty_dir, spy):
    folder = nasty_dir / "bundle"
    bundle(folder)
    for cwd, script in ((nasty_dir, "bundle/launch.sh"), (folder, "launch.sh")):
        call = launch(Path(script), cwd=cwd, PYTHON=str(spy))
        assert call["argv"] == expected(folder)


def test_a_search_path_for_folders_does_not_lead_astray(tmp_path, nasty_dir, spy):
    (tmp_path / "elsewhere" / "bundle").mkdir(parents=True)
    bundle(nasty_dir / "bundle")
    call = launch(
        Path("bundle/launch.sh"),
        cwd=nasty_dir,
        PYTHON=str(spy),
        CDPATH=str(tmp_path / "elsewhere"),
    )
    assert call["argv"] == expected(nasty_dir / "bundle")


def test_the_tuned_interpreter_is_called_whatever_its_name(nasty_dir, tmp_path):
    python = make_spy(nasty_dir / "bin" / "python")
    script = bundle(tmp_path / "bundle", python=str(python))
    assert launch(script, cwd=tmp_path)["spy"] == str(python)
    other_spy = make_spy(tmp_path / "other")
    assert launch(script, cwd=tmp_path, PYTHON=str(other_spy))["spy"] == str(other_spy)


def test_the_environment_is_set_but_what_is_there_already_wins(tmp_path):
    spy = make_spy(tmp_path / "python")
    script = bundle(tmp_path / "bundle", "cuda_bf16")
    call_alone = launch(script, cwd=tmp_path, PYTHON=str(spy))
    assert call_alone["argv"] == expected(tmp_path / "bundle", threads=4)
    assert call_alone["environment"] == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "3",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    }
    variables = {
        "CUDA_DEVICE_ORDER": "FASTEST_FIRST",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64",
    }
    assert launch(script, cwd=tmp_path, PYTHON=str(spy), **variables)["environment"] == variables


def test_a_job_without_data_asks_for_it(tmp_path):
    spy = make_spy(tmp_path / "python")
    script = bundle(tmp_path / "bundle", "no_data")
    for arguments in ((), ("--max_steps", "3"), ("--run_name", "dataset_name")):
        refusal = launch(script, *arguments, cwd=tmp_path, PYTHON=str(spy))
        assert refusal.returncode == 2
        assert refusal.stdout == ""
        assert "--dataset_name DATA" in refusal.stderr


@pytest.mark.parametrize("arguments", [("--dataset_name", "my data"), ("--dataset_name=my data",)])
def test_a_job_without_data_takes_it_at_launch(arguments, tmp_path):
    spy = make_spy(tmp_path / "python")
    script = bundle(tmp_path / "bundle", "no_data")
    call = launch(script, "--max_steps", "3", *arguments, cwd=tmp_path, PYTHON=str(spy))
    assert call["argv"] == expected(tmp_path / "bundle", "--max_steps", "3", *arguments)


def test_all_that_is_missing_is_named_at_once(tmp_path):
    case = CASES["ppo"]()
    job = case.job.model_copy(update={"reward_model_path": None})
    data = replace(case.facts.data, source="")
    script = bundle(tmp_path / "bundle", "ppo", job=job, facts=replace(case.facts, data=data))
    spy = make_spy(tmp_path / "python")
    refusal = launch(script, cwd=tmp_path, PYTHON=str(spy))
    assert refusal.returncode == 2
    assert refusal.stderr == (
        "launch.sh: the job gave lengths in place of data: add --dataset_name DATA\n"
        "launch.sh: the job named no reward model: add --reward_model_path MODEL\n"
    )
    half = launch(script, "--dataset_name", "x", cwd=tmp_path, PYTHON=str(spy))
    assert half.stderr.count("launch.sh:") == 1
    arguments = ("--dataset_name", "x", "--reward_model_path=y")
    assert launch(script, *arguments, cwd=tmp_path, PYTHON=str(spy))["argv"][-3:] == list(arguments)


def test_a_launch_asks_for_the_rewards_that_a_plan_did_without(tmp_path):
    case = CASES["grpo"]()
    job = case.job.model_copy(update={"reward_funcs": []})
    script = bundle(tmp_path / "bundle", "grpo", job=job)
    refusal = launch(script, cwd=tmp_path, PYTHON=str(make_spy(tmp_path / "python")))
    assert (refusal.returncode, refusal.stderr) == (
        2,
        "launch.sh: the job named no reward: add --reward_funcs FUNCTION\n",
    )


@pytest.mark.parametrize("form", [("--dataset_name", "{}"), ("--dataset_name={}",)])
def test_data_may_be_one_file(form, tmp_path, nasty_dir):
    """As `datasets` reads what TRL is then given."""
    from datasets import load_dataset

    spy, data = make_spy(tmp_path / "python"), nasty_dir / "my rows.jsonl"
    data.write_text('{"text": "a"}\n{"text": "b"}\n', encoding="utf-8")
    script = bundle(tmp_path / "bundle", "no_data")
    folder = str(tmp_path / "bundle" / "one_file")
    (tmp_path / "old.json").touch()
    second_path = Path(folder) / "train.jsonl"
    for data_path in (tmp_path / "old.json", data, second_path):  # the last one only
        arguments = [argument.format(data_path) for argument in form]
        argv = launch(script, "--run_name", "x", *arguments, cwd=tmp_path, PYTHON=str(spy))["argv"]
    assert argv[-len(form) - 2 :] == [
        "--run_name",
        "x",
        *(argument.format(folder) for argument in form),
    ]
    rows = load_dataset(folder, cache_dir=str(tmp_path / "cache"))
    assert rows["train"]["text"][:] == ["a", "b"]


def test_a_failing_training_fails_the_script(tmp_path):
    spy = tmp_path / "python"
    spy.write_text("#!/bin/sh\nexit 7\n")
    spy.chmod(0o755)
    assert launch(bundle(tmp_path / "bundle"), cwd=tmp_path, PYTHON=str(spy)).returncode == 7


def test_the_server_serves_the_model_on_the_gpus_that_it_is_given(spy: Path, nasty_dir: Path):
    script = bundle(nasty_dir / "bundle", "grpo_server").with_name("serve.sh")
    variables = {"PYTHON": str(spy), "CUDA_VISIBLE_DEVICES": "1,2"}
    call = launch(script, "--dtype", "half", cwd=nasty_dir, **variables)
    assert call["environment"]["CUDA_VISIBLE_DEVICES"] == "1,2"
    argv = call["argv"]
    assert argv[:4] == ["-m", "vllm.entrypoints.cli.main", "serve", "/models/small"]
    assert argv[argv.index("--tensor-parallel-size") + 1] == "2"
    assert json.loads(argv[argv.index("--weight-transfer-config") + 1]) == {"backend": "nccl"}
    assert argv[-2:] == ["--dtype", "half"]


@pytest.mark.parametrize(
    ("gpus", "message"),
    [({}, "name the GPUs"), ({"CUDA_VISIBLE_DEVICES": "1,3"}, "GPU 3 trains")],
)
def test_the_server_never_gets_the_gpu_that_trains(spy: Path, nasty_dir: Path, gpus, message):
    script = bundle(nasty_dir / "bundle", "grpo_server").with_name("serve.sh")
    completed = launch(script, cwd=nasty_dir, PYTHON=str(spy), **gpus)
    assert completed.returncode == 2 and message in completed.stderr
