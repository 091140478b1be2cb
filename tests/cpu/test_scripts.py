"""Scripts that others wrote, searched as they are: TRL's own, and what users write."""

import html
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import UserError
from autotune.probe.protocol import Measurement
from autotune.process.run_folder import RunFolder
from autotune.script.command import ScriptCommand
from autotune.script.tuning import ScriptResult, tune_script
from tests.cpu.conftest import LLAMA, Command

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.fixture(scope="session")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model, its tokenizer and data of each kind."""
    import random

    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("material")
    words = ["<pad>", "<eos>", "<unk>", *(f"w{n}" for n in range(500))]
    splitter = Tokenizer(models.WordLevel({w: n for n, w in enumerate(words)}, unk_token="<unk>"))
    splitter.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokens = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=splitter, **tokens)
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    tokenizer.save_pretrained(folder / "model")
    config = transformers.LlamaConfig(**LLAMA, pad_token_id=0, eos_token_id=1)
    transformers.LlamaForCausalLM(config).save_pretrained(folder / "model")
    draw = random.Random(1)

    def text(least: int, most: int) -> str:
        return " ".join(f"w{draw.randrange(500)}" for _ in range(draw.randrange(least, most)))

    rows: dict[str, Callable[[], dict[str, Any]]] = {
        "sft": lambda: {"text": text(10, 100)},
        "dpo": lambda: {"prompt": text(5, 30), "chosen": text(5, 40), "rejected": text(5, 40)},
        "grpo": lambda: {"prompt": [{"role": "user", "content": text(5, 30)}]},
    }
    for name, row in rows.items():
        (folder / name).mkdir()
        lines = [json.dumps(row()) for _ in range(100)]
        (folder / name / "train.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return folder


def of_trl(name: str) -> str:
    import trl

    return str(Path(trl.__file__).parent / "scripts" / f"{name}.py")


def arguments(material: Path, name: str, *more: str) -> list[str]:
    """Of one of TRL's scripts: 2 x 2 rows for a step."""
    return [
        *("--model_name_or_path", str(material / "model")),
        *("--dataset_name", str(material / name)),
        *("--output_dir", "out", "--use_cpu", "--bf16", "false"),
        *("--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "2"),
        *more,
    ]


def searched(
    script: str, words: list[str], out: Path, monkeypatch: pytest.MonkeyPatch, **limits: Any
) -> ScriptResult:
    """A search of one probe."""
    monkeypatch.chdir(out.parent)
    return tune_script(
        ScriptCommand.of_script(script, words),
        RunFolder(path=out),
        {"budget": {"probes": 1}, "devices": {"memory": "3GiB"}, **limits},
        verify=False,
    )


def measured(found: ScriptResult) -> list[Measurement]:
    measurements = [record.measurement for record in found.result.records]
    assert all(m is not None and m.outcome == "ok" for m in measurements), measurements
    return [m for m in measurements if m is not None]


def test_trls_sft_is_searched_and_its_launch_script_trains(
    material: Path, autotune: Command
) -> None:
    words = arguments(material, "sft", "--max_length", "64", "--max_steps", "2")
    limits = ["--set", "budget.probes=1", "--set", "devices.memory=3GiB"]
    pinned = ["--set", "gradient_checkpointing=false"]
    run = ["run", "--script", of_trl("sft"), *limits, *pinned, "--out", "run", "--json"]
    found = json.loads(autotune(*run, "--", *words, expect=None))
    assert found["outcome"] == "recommended"
    verdict = found["verification"]  # what else ran meanwhile makes it slower, or was gone
    assert verdict["verified"] or verdict["only_too_slow"] or verdict["only_too_fast"], verdict
    fields, knobs = found["fields"], found["knobs"]
    assert fields["activation_checkpointing"] is False
    assert knobs["per_device_train_batch_size"] * knobs["gradient_accumulation_steps"] == 4
    assert found["measurement"]["tokens_per_s"] > 0
    assert found["script"]["trainer"].endswith("SFTTrainer")
    again = json.loads(autotune("run", "--resume", "run", "--no-verify", "--json"))
    assert (again["knobs"], again["probes"]) == (knobs, found["probes"])
    assert "only the budget" in autotune.refused("run", "--resume", "run", "--set", "headroom=0.2")
    assert "it is the run of a script" in autotune.refused("verify", "run")
    report = autotune("report", "run", "--html", "report.html")
    assert f"recommended: probe {found['probe']}" in report
    page = html.unescape((autotune.folder / "report.html").read_text(encoding="utf-8"))
    again = "autotune run --command --set budget.probes=1 --set devices.memory=3GiB --set fixed."
    assert "SFTTrainer" in page and again in page and f"false -- {sys.executable}" in page
    assert "A script is not traced" in page and "autotune verify" not in page
    told = json.loads(autotune("report", "run", "--json"))
    assert told["recommendation"]["fields"] == fields
    launch = autotune.folder / "run" / "bundle" / "launch.sh"
    assert "--activation_checkpointing false" in launch.read_text(encoding="utf-8")
    done = subprocess.run(["bash", str(launch)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert (autotune.folder / "out" / "model.safetensors").is_file()


@pytest.mark.nightly("scripts")
def test_a_trainer_of_trls_experimental_part_is_measured(
    material: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of them is a method of a job: this is their way (docs/not_supported.md)."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    words = arguments(material, "dpo", "--max_length", "64")
    (measurement,) = measured(
        searched(str(SCRIPTS / "orpo.py"), words, tmp_path / "run", monkeypatch)
    )
    assert measurement.tokens_per_s and measurement.peak_memory_bytes


@pytest.mark.nightly("scripts")
@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("dpo", ["--max_length", "64"]),
        (
            "grpo",
            ["--num_generations", "2", "--max_completion_length", "8"]
            + ["--reward_funcs", "think_format_reward"],
        ),
    ],
)
def test_trls_dpo_and_grpo_are_measured(
    name: str, more: list[str], material: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = searched(of_trl(name), arguments(material, name, *more), tmp_path / "run", monkeypatch)
    (measurement,) = measured(found)
    assert measurement.tokens_per_s and measurement.peak_memory_bytes
    assert found.look is not None and found.look.rows == 100
    assert found.look.online == (name == "grpo")
    assert found.look.online == (measurement.generation_s is not None)


@pytest.mark.nightly("scripts")
def test_what_a_script_has_in_its_source_is_set_by_the_hook_in_its_launch_script_too(
    autotune: Command,
) -> None:
    script = str(SCRIPTS / "collator.py")
    limits = ["--set", "budget.probes=1", "--set", "per_device_train_batch_size=1", "--no-verify"]
    out = autotune("run", "--script", script, *limits, "--out", "run", "--", "out")
    assert "start it: bash" in out
    assert "gradient_accumulation_steps 4, per_device_train_batch_size 1" in out
    assert "NOT verified: launch.sh was not started yet" in out
    done = subprocess.run(
        ["bash", str(autotune.folder / "run" / "bundle" / "launch.sh")],
        capture_output=True,
        text=True,
        timeout=300,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )
    assert done.returncode == 0, done.stderr
    assert "trained 1 x 4" in done.stdout
    report = json.loads((autotune.folder / "run" / "survey" / "look.json").read_text())
    assert report["trainer"].endswith("WeightedTrainer")
    assert "it switches checkpointing on by itself" in report["notes"][0]
    assert "gradient_checkpointing:" not in out
    assert report["lengths"]["longest"] == 62


@pytest.mark.nightly("scripts")
def test_two_ranks_of_torchrun_are_measured_together(autotune: Command) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
    limits = ["--set", "budget.probes=1", "--no-verify", "--out", "run", "--json"]
    script = str(SCRIPTS / "collator.py")
    found = json.loads(autotune("run", "--command", *limits, "--", *torchrun, script, "out"))
    assert found["script"]["processes"] == 2
    assert [rank["rank"] for rank in found["measurement"]["ranks"]] == [0, 1]
    assert found["measurement"]["engine"] == "MULTI_CPU"
    launch = (autotune.folder / "run" / "bundle" / "launch.sh").read_text(encoding="utf-8")
    assert "torch.distributed.run --nproc_per_node 2" in launch


LOOP = """
import torch
model = torch.nn.Linear(2, 2)
for step in range(3):
    model(torch.ones(2)).sum().backward()
print("done")
"""


def test_a_loop_of_its_own_is_refused(autotune: Command) -> None:
    (autotune.folder / "own.py").write_text(LOOP, encoding="utf-8")
    told = autotune.refused("run", "--script", "own.py")
    assert "without `train()` of a transformers Trainer" in told


def test_words_of_the_script_before_the_dashes_are_refused_with_their_place(
    autotune: Command,
) -> None:
    for words in (["--config", "my.yaml"], ["my.yaml"]):
        assert "stands behind `--`" in autotune.refused("run", "--script", "own.py", *words)


def test_a_script_that_fails_is_shown_by_its_own_last_lines(autotune: Command) -> None:
    (autotune.folder / "bad.py").write_text("raise ValueError('no such data')", encoding="utf-8")
    told = autotune.refused("run", "--script", "bad.py")
    assert "exit code 1 before it trained" in told
    assert "ValueError: no such data" in told


def test_a_script_that_trains_twice_is_refused_and_the_place_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (SCRIPTS / "collator.py").read_text(encoding="utf-8")
    script = tmp_path / "twice.py"
    twice = "trainer.train()\n    trainer.train()\n"
    script.write_text(text.replace("trainer.train()\n", twice), encoding="utf-8")
    with pytest.raises(UserError, match=r"trains more than once \(again at twice.py:\d+"):
        searched(str(script), ["out"], tmp_path / "run", monkeypatch)


@pytest.mark.nightly("scripts")
def test_a_stream_that_is_evaluated_saved_and_stopped_early_is_measured_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = searched(str(SCRIPTS / "stream.py"), ["out"], tmp_path / "run", monkeypatch)
    measured(found)
    assert found.look is not None and found.look.rows is None
    assert not any((tmp_path / "out").glob("*")), "a probe has saved or evaluated"


LOADER = """
def _own_loader(trainer):
    return torch.utils.data.DataLoader(Rows(), batch_size=2, collate_fn=collate)


WeightedTrainer.get_train_dataloader = _own_loader


"""


@pytest.mark.nightly("scripts")
def test_a_loader_that_decides_how_many_rows_come_is_not_taken_for_the_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two rows at a time, whatever is set: one micro-batch is true, and every other a lie."""
    text = (SCRIPTS / "collator.py").read_text(encoding="utf-8")
    script = tmp_path / "loading.py"
    script.write_text(text.replace("def trainer_of", LOADER + "def trainer_of"), encoding="utf-8")
    limits = {"fixed": {"optim": "adamw_torch"}, "budget": {"probes": 2}}
    found = searched(str(script), ["out"], tmp_path / "run", monkeypatch, **limits)
    assert found.look is not None
    assert any("its own data loader" in note for note in found.look.notes)
    by_size = {
        record.candidate.micro_batch: record.measurement
        for record in found.result.records
        if record.measurement is not None
    }
    assert by_size[2].outcome == "ok"
    assert by_size[2].tokens_per_epoch is None
    others = [measurement for size, measurement in by_size.items() if size != 2]
    assert others and all(measurement.outcome == "unsupported" for measurement in others)
    assert "takes 2 rows at a time" in str(others[0].reason)
