"""`launch.sh`, really run, with an interpreter that only tells how it was called."""

import json
import os
import subprocess
import sys
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
    kept = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
    done = subprocess.run(
        ["bash", str(script), *arguments],
        cwd=cwd,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return json.loads(done.stdout) if done.returncode == 0 else done


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
    script = bundle(tmp_path / "bundle", name)
    checked = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_arguments_arrive_unsplit_from_any_folder(nasty_dir, spy, tmp_path):
    folder = nasty_dir / "bundle"
    arguments = ("--max_steps", "3", "--run_name", "a 'b' \"c\" $d *")
    seen = launch(bundle(folder), *arguments, cwd=tmp_path, PYTHON=str(spy))
    assert seen["argv"] == expected(folder, *arguments)
    assert seen["environment"] == {}


def test_the_script_finds_its_files_by_a_relative_name(nasty_dir, spy):
    folder = nasty_dir / "bundle"
    bundle(folder)
    for cwd, script in ((nasty_dir, "bundle/launch.sh"), (folder, "launch.sh")):
        seen = launch(Path(script), cwd=cwd, PYTHON=str(spy))
        assert seen["argv"] == expected(folder)


def test_a_search_path_for_folders_does_not_lead_astray(tmp_path, nasty_dir, spy):
    (tmp_path / "elsewhere" / "bundle").mkdir(parents=True)
    bundle(nasty_dir / "bundle")
    seen = launch(
        Path("bundle/launch.sh"),
        cwd=nasty_dir,
        PYTHON=str(spy),
        CDPATH=str(tmp_path / "elsewhere"),
    )
    assert seen["argv"] == expected(nasty_dir / "bundle")


def test_the_tuned_interpreter_is_called_whatever_its_name(nasty_dir, tmp_path):
    python = make_spy(nasty_dir / "bin" / "python")
    script = bundle(tmp_path / "bundle", python=str(python))
    assert launch(script, cwd=tmp_path)["spy"] == str(python)
    other = make_spy(tmp_path / "other")
    assert launch(script, cwd=tmp_path, PYTHON=str(other))["spy"] == str(other)


def test_the_environment_is_set_but_what_is_there_already_wins(tmp_path):
    spy = make_spy(tmp_path / "python")
    script = bundle(tmp_path / "bundle", "cuda_bf16")
    alone = launch(script, cwd=tmp_path, PYTHON=str(spy))
    assert alone["argv"] == expected(tmp_path / "bundle", threads=4)
    assert alone["environment"] == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "3",
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    }
    given = {
        "CUDA_DEVICE_ORDER": "FASTEST_FIRST",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64",
    }
    assert launch(script, cwd=tmp_path, PYTHON=str(spy), **given)["environment"] == given


def test_a_job_without_data_asks_for_it(tmp_path):
    spy = make_spy(tmp_path / "python")
    script = bundle(tmp_path / "bundle", "no_data")
    for arguments in ((), ("--max_steps", "3"), ("--run_name", "dataset_name")):
        refused = launch(script, *arguments, cwd=tmp_path, PYTHON=str(spy))
        assert refused.returncode == 2
        assert refused.stdout == ""
        assert "--dataset_name DATA" in refused.stderr


@pytest.mark.parametrize("arguments", [("--dataset_name", "my data"), ("--dataset_name=my data",)])
def test_a_job_without_data_takes_it_at_launch(arguments, tmp_path):
    spy = make_spy(tmp_path / "python")
    script = bundle(tmp_path / "bundle", "no_data")
    seen = launch(script, "--max_steps", "3", *arguments, cwd=tmp_path, PYTHON=str(spy))
    assert seen["argv"] == expected(tmp_path / "bundle", "--max_steps", "3", *arguments)


def test_a_failing_training_fails_the_script(tmp_path):
    spy = tmp_path / "python"
    spy.write_text("#!/bin/sh\nexit 7\n")
    spy.chmod(0o755)
    assert launch(bundle(tmp_path / "bundle"), cwd=tmp_path, PYTHON=str(spy)).returncode == 7
