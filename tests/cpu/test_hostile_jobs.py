"""Jobs, models and data that mean harm, looked at with the real stack."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from autotune.probe import survey
from autotune.process import host_memory
from tests.cpu.conftest import LLAMA, Command
from tests.cpu.stand_ins import give_tokenizer
from tests.cpu.test_run import write_job

REMOTE = {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M", "AutoTokenizer": "evil.T"}
ONE = {
    **{"num_generations": 4, "max_completion_length": 8, "per_device_train_batch_size": 4},
    **{"gradient_checkpointing": False, "optim": "adamw_torch", "attn_implementation": "sdpa"},
}


def give_code(folder: Path) -> Path:
    """A module that leaves a mark when it is imported; the mark."""
    mark = folder / "mark"
    code = f"import os\nos.makedirs({str(mark)!r})\ndef r(completions, **_): return [0.0]\n"
    for place in (folder, folder / "model"):
        (place / "evil.py").write_text(code, encoding="utf-8")
    return mark


def test_looking_imports_nothing_of_a_job(autotune: Command) -> None:
    changes: dict[str, Any] = {"method": "grpo", "max_length": None, "fixed": ONE}
    write_job(autotune.folder, **changes, reward_funcs=["evil.r"])
    config = {**LLAMA, "auto_map": REMOTE}
    (autotune.folder / "model" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    mark = give_code(autotune.folder)
    autotune("validate", "job.yaml")
    shown = autotune("validate", "--space", "job.yaml", "--json")
    note = "it runs code that is not the stack's: the job's (`reward_funcs: evil.r`)"
    assert note in json.loads(shown)["notes"]
    flags = ["--method", "grpo", "--model", "model/config.json", "--max-length", "64"]
    flags += ["--tuning", "full", "--device", "cpu", "--only-default", "--global-batch-size", "16"]
    sets = [
        "reward_funcs=[evil.r]",
        *(f"{name}={json.dumps(value)}" for name, value in ONE.items()),
    ]
    pinned = [part for one in sets for part in ("--set", one)]
    plan = json.loads(autotune("plan", *flags, *pinned, "--json", expect=None))
    assert plan["candidates"][0]["estimate"]["method"] == "trace", "what plans by formula has none"
    assert not mark.exists()
    assert "evil" in autotune.refused("probe", "job.yaml", "--set", "reward_funcs=[evil.none]")
    assert mark.exists(), "what trains imports"


ROWS = 3 * [{"input_ids": [3, 4, 5]}]


@pytest.mark.parametrize(
    ("config", "rows", "said"),
    [
        ({"num_hidden_layers": 0}, ROWS, "config.json: `num_hidden_layers: 0` must be"),
        ({"num_hidden_layers": 100_000}, ROWS, "above 0, at most 1,024"),
        ({"num_labels": 2**63}, ROWS, "config.json: `num_labels: 9223372036854775808` must be"),
        ({}, [*ROWS, {"input_ids": []}], "dataset: row 3 (counted from 0) has no tokens"),
        ({}, [*ROWS, {"input_ids": [1, 8192]}], "`input_ids` of row 3 (counted from 0) has the"),
        (
            {},
            [{"input_ids": [1, 2], "labels": [1, 2]}, {"input_ids": [1, 2], "labels": [1]}],
            "dataset: row 1 (counted from 0) has 2 `input_ids` and 1 `labels`",
        ),
        (
            {},
            [{"input_ids": [1, 2], "labels": [1, 2]}, *ROWS],
            "dataset: `labels` of row 1 is null",
        ),
        ({}, [{"input_ids": [1, -7]}], "has the token -7, and the model knows 0 to 8191"),
        ({"vocab_size": 64}, [{"text": "the sea and the land"}], "and the model knows 0 to 63"),
        ({"model_type": "evil", "auto_map": REMOTE}, ROWS, "trust_remote_code"),
    ],
)
def test_what_cannot_be_trained_is_refused_in_the_datas_words(
    config: dict[str, Any], rows: list[dict[str, Any]], said: str, autotune: Command
) -> None:
    write_rows(autotune.folder, rows, **config)
    mark = give_code(autotune.folder)
    assert said in autotune.refused("validate", "--space", "job.yaml")
    assert not mark.exists()


def write_rows(folder: Path, rows: list[dict[str, Any]], **config: Any) -> None:
    """A job on a folder of data, whose model has the quickstart's tokenizer."""
    data = folder / "data"
    data.mkdir()
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (data / "train.jsonl").write_text(lines, encoding="utf-8")
    write_job(folder, dataset="data")
    text = json.dumps({**LLAMA, "vocab_size": 8192, **config})
    (folder / "model" / "config.json").write_text(text, encoding="utf-8")
    give_tokenizer(folder / "model")


def test_data_at_which_their_reader_crashes_are_refused(autotune: Command) -> None:
    """pyarrow's reader of JSON (26.0) follows a pointer to nowhere."""
    write_rows(autotune.folder, ROWS)
    (autotune.folder / "data" / "train.jsonl").write_text("null", encoding="utf-8")
    told = autotune.refused("validate", "--space", "job.yaml")
    assert told.startswith("error: dataset: looking at it ended in SIGSEGV")


ENDLESS = "".join(f"{{% for {name} in range(9999) %}}" for name in "abcdef")


def test_a_chat_template_without_end_is_given_up(
    autotune: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rows(autotune.folder, 3 * [{"messages": [{"role": "user", "content": "x"}]}])
    text = ENDLESS + "{{ a }}" + 6 * "{% endfor %}"
    (autotune.folder / "model" / "chat_template.jinja").write_text(text, encoding="utf-8")
    monkeypatch.setattr(survey, "STALL_S", 3.0)
    told = autotune.refused("validate", "--space", "job.yaml")
    assert told.startswith("error: dataset: no progress for 3 s of looking at it: autotune gave up")


def test_a_chat_template_that_grows_is_given_up_by_the_size_of_the_work(
    autotune: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_rows(autotune.folder, 3 * [{"messages": [{"role": "user", "content": "x"}]}])
    text = "{{ '%999999999d'|format(1) }}"
    (autotune.folder / "model" / "chat_template.jinja").write_text(text, encoding="utf-8")
    monkeypatch.setattr(host_memory, "LOOK_BYTES", 2**30)
    told = autotune.refused("validate", "--space", "job.yaml")
    assert told.startswith("error: dataset: looking at it took more than 1 GiB of the host's")


def test_pickles_and_data_from_elsewhere_are_refused(autotune: Command) -> None:
    write_rows(autotune.folder, ROWS)
    (autotune.folder / "model" / "pytorch_model.bin").write_bytes(b"x")
    told = autotune.refused("probe", "job.yaml", "--set", "model=./model")
    assert "are pickles (pytorch_model*.bin), which may hold code" in told
    card = "configs:\n- {config_name: a, data_files: /etc/passwd}\n"
    (autotune.folder / "data" / ".huggingface.yaml").write_text(card, encoding="utf-8")
    told = autotune.refused("validate", "--space", "job.yaml")
    assert ".huggingface.yaml: names data outside of its folder: /etc/passwd" in told
    (autotune.folder / "data" / "train.jsonl").unlink()
    os.mkfifo(autotune.folder / "data" / "train.jsonl")
    (autotune.folder / "data" / ".huggingface.yaml").unlink()
    autotune.refused("validate", "--space", "job.yaml")
