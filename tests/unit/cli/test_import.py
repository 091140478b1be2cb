"""`autotune import`, and other tools' files where a job is taken."""

import json
from pathlib import Path

import pytest

from autotune.space.job_file.load import load_job
from tests.unit.calling import call, refused
from tests.unit.space.foreign.files import ACCELERATE, AXOLOTL, DEEPSPEED, LLAMA_FACTORY, TRL


@pytest.fixture(autouse=True)
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("theirs.yaml").write_text(LLAMA_FACTORY, encoding="utf-8")
    Path("accelerate.yaml").write_text(ACCELERATE, encoding="utf-8")
    Path("deepspeed.json").write_text(DEEPSPEED, encoding="utf-8")


def test_the_job_goes_to_stdout_and_what_became_of_each_field_to_stderr() -> None:
    result = call("import", "theirs.yaml")
    assert result.exit_code == 0, result.stderr
    Path("job.yaml").write_text(result.stdout, encoding="utf-8")
    job, _ = load_job(Path("job.yaml"))
    assert job.global_batch_size == 8
    assert "# - template: TRL formats rows" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 100
    for title in ("carried:", "searched instead:", "left out:", "assumed:"):
        assert title in result.stderr.splitlines()
    assert "18 of 30 fields carried, 3 searched instead" in result.stderr.splitlines()[-1]


def test_it_is_written_where_that_is_asked_for_and_nothing_is_written_over() -> None:
    assert call("import", "theirs.yaml", "--out", "new/job.yaml").exit_code == 0
    job, _ = load_job(Path("new/job.yaml"))
    assert job.method == "sft"
    assert "the file exists already" in refused("import", "theirs.yaml", "--out", "theirs.yaml")


def test_several_files_and_json() -> None:
    result = call("import", "theirs.yaml", "accelerate.yaml", "--as-is", "--json")
    told = json.loads(result.stdout)
    assert told["tool"] == "LLaMA-Factory"
    assert told["job"]["fixed"]["zero_stage"] == 3
    assert {field["fate"] for field in told["fields"]} == {"carried", "left"}
    result = call("import", "theirs.yaml", "deepspeed.json", "--devices", 4, "--json")
    assert json.loads(result.stdout)["job"]["global_batch_size"] == 32


def test_a_command_is_read_and_not_run() -> None:
    flags = "--model_name_or_path Qwen/Qwen2.5-0.5B --learning_rate 1e-4"
    words = f"accelerate launch --config_file accelerate.yaml train.py {flags}".split()
    result = call("import", "--method", "sft", "--", *words)
    assert result.exit_code == 0, result.stderr
    assert "global_batch_size: 64" in result.stdout


def test_a_commands_text_and_its_secrets_are_written_nowhere() -> None:
    flags = "--model_name_or_path Qwen/Qwen2.5-0.5B --dataset_name org/rows --hub_token hf_abc"
    words = ["--", "WANDB_API_KEY=abc", "trl", "sft", *flags.split(), "--config", "more.yaml"]
    Path("more.yaml").write_text("learning_rate: 1e-4\n", encoding="utf-8")
    result = call("import", *words)
    assert result.exit_code == 0, result.stderr
    first = result.stdout.splitlines()[0]
    assert first == "# Made by `autotune import` of a command and more.yaml."
    everything = result.stdout + result.stderr + call("import", "--json", *words).stdout
    assert "abc" not in everything
    assert '"***"' in result.stderr
    assert "abc" not in refused("import", "--", "TOKEN=abc", "python", "train.py")
    assert "abc" not in refused("import", *words, "--max_length", "-1")


def test_axolotls_own_command_with_a_launchers_flags() -> None:
    Path("axolotl.yaml").write_text(AXOLOTL, encoding="utf-8")
    words = [
        "axolotl",
        "train",
        "axolotl.yaml",
        "--launcher",
        "torchrun",
        "--",
        "--nproc_per_node=2",
    ]
    assert "global_batch_size: 8" in call("import", "--", *words).stdout


def test_all_devices_are_counted_where_a_file_is_taken_for_a_job() -> None:
    Path("trl.yaml").write_text(f"{TRL}num_processes: 8\nnum_machines: 2\n", encoding="utf-8")
    assert "global batch 128, 8 devices;" in call("validate", "trl.yaml").stderr


def test_what_is_missing_can_be_said_by_flags() -> None:
    Path("args.json").write_text('{"learning_rate": 1e-4, "bf16": true}', encoding="utf-8")
    assert "does not name the training method" in refused("import", "args.json")
    assert "`model` is missing" in refused("import", "args.json", "--method", "sft")
    flags = ("--method", "dpo", "--model", "qwen2.5-0.5b", "--dataset", "org/pairs")
    told = json.loads(call("import", "args.json", *flags, "--json").stdout)
    assert (told["job"]["model"], told["job"]["dataset"]) == ("qwen2.5-0.5b", "org/pairs")


def test_commands_take_such_a_file_where_they_take_a_job() -> None:
    result = call("validate", "theirs.yaml", "--set", "devices.count=2")
    assert result.exit_code == 0, result.stderr
    assert "global_batch_size: 16" in result.stdout
    (line,) = result.stderr.splitlines()
    assert line.startswith("read as a configuration of LLaMA-Factory: 18 of 30 fields carried")
    assert line.endswith("global batch 16, 2 devices; `autotune import theirs.yaml` lists them")
    assert call("validate", "--space", "theirs.yaml", "--set", "devices.kind=cpu").exit_code == 0


@pytest.mark.parametrize(
    "text",
    [
        "stage: [\ntemplate: x\n",
        "stage: sft\nstage: dpo\ntemplate: x\n",
        "stage: sft\ntemplate: x\ncutoff_len: {a: 1}\nlora_rank: [1]\nlora_target: {}\n"
        "dataset: 7\nbf16: maybe\nmodel_name_or_path: 3\n",
        "stage: sft\ntemplate: x\nper_device_train_batch_size: " + "9" * 299 + "\n",
        "stage: sft\ntemplate: x\nquantization_bit: [4]\nfinetuning_type: {}\ndeepspeed: [1]\n",
        "base_model: {}\ndatasets: {}\nadapter: []\nsequence_len: -3\ntrl: 5\nload_in_8bit: x\n",
        "base_model: a\ndatasets: [[]]\nrl: [dpo]\nwarmup_ratio: x\n",
        "model: {_component_: [1]}\ntokenizer: 3\nloss: {_component_: {}}\n",
        "model_name: 3\nmax_seq_length: x\nr: -1\nload_in_4bit: []\n",
        f"{TRL}\nreport_to: &a [*a]\n",
    ],
)
def test_broken_files_are_refused_in_words(text: str) -> None:
    Path("broken.yaml").write_text(text, encoding="utf-8")
    assert "broken.yaml" in refused("import", "broken.yaml", "--model", "qwen2.5-0.5b")
    assert "broken.yaml" in refused("validate", "broken.yaml", "--model", "qwen2.5-0.5b")
