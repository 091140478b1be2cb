"""`--server`: what is sent, and what is refused before anything is."""

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.client import Client
from autotune.space.job_file.load import load_job
from tests.unit.calling import call, refused

DONE = {"kind": "run", "id": "0" * 16, "state": "done", "ahead": None, "exit_code": 0, "files": []}
DONE |= {"text": "the answer\n", "result": {"outcome": "recommended"}, "error": None}


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What is submitted, to a service that has done it already."""
    kept: dict[str, Any] = {}

    def submit(_: Client, kind: str, **body: Any) -> Any:
        kept.update(body, kind=kind)
        return DONE

    monkeypatch.setattr(Client, "submit", submit)
    monkeypatch.setattr(Client, "get", lambda *_: DONE)
    monkeypatch.setattr(Client, "follow", lambda *_: iter(()))
    return kept


def write_job(folder: Path, **fields: Any) -> Path:
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    job = {
        "model": "model/config.json",
        "dataset": {"lengths": {"max": 100}},
        "global_batch_size": 8,
        "max_length": 100,
        **fields,
    }
    file = folder / "job.yaml"
    file.write_text(json.dumps(job), encoding="utf-8")
    return file


def test_the_job_is_sent_as_its_flags_have_it_with_its_bare_config(
    nasty_dir: Path, sent: dict[str, Any]
) -> None:
    recipe = {"global_batch_size": [8, 16]}
    training = {"learning_rate": 1e-4, "lr_scheduler_type": "cosine"}
    file = write_job(nasty_dir, recipe=recipe, training=training, budget="3m")
    sets = ("--set", "devices.memory=4GiB", "--set", "optim=sgd", "--tuning", "lora")
    result = call("run", file, *sets, "--server", "http://127.0.0.1:1")
    assert (result.exit_code, result.stdout) == (0, "the answer\n")
    assert sent["kind"] == "run" and sent["model_config_json"] == {"model_type": "llama"}
    (nasty_dir / "there").mkdir()
    (nasty_dir / "there" / "config.json").write_text("{}", encoding="utf-8")
    (nasty_dir / "there" / "job.yaml").write_text(json.dumps(sent["job"]), encoding="utf-8")
    there = load_job(nasty_dir / "there" / "job.yaml")[0]
    here = load_job(file, ["devices.memory=4GiB", "optim=sgd", "tuning=lora"])[0]
    assert there.model_copy(update={"model": here.model}) == here
    assert "objective" not in sent["job"], "what nobody said is not sent"


def test_what_lies_where_the_service_is_need_not_be_here(
    tmp_path: Path, sent: dict[str, Any]
) -> None:
    file = write_job(tmp_path, dataset="/srv/data.jsonl")
    call("plan", file, "--device", "h200", "--server", "http://127.0.0.1:1")
    assert sent["job"]["dataset"] == "/srv/data.jsonl"
    # Its tokenizer lies beside the config, so that stays what it is: a path.
    assert sent["job"]["model"] == f"{tmp_path}/model/config.json"
    assert sent["model_config_json"] is None
    assert (sent["device"], sent["stack"], sent["only_default"]) == ("h200", "any", False)
    call("plan", "--model", "qwen2.5-7b", "--max-length", "64", "--server", "http://127.0.0.1:1")
    assert sent["job"]["model"] == "Qwen/Qwen2.5-7B"
    assert sent["only_default"] is False, "as here: flags without a job are a job"
    assert sent["job"]["global_batch_size"] == 32 and "lengths" in sent["job"]["dataset"]


def test_what_the_service_cannot_be_told_is_refused_at_once(tmp_path: Path) -> None:
    server = ("--server", "http://127.0.0.1:1")
    said = refused("plan", write_job(tmp_path), *server, "--all", "--top", "3", "--record", "x")
    assert all(
        f"{name}: a service does not take this" in said for name in ("--all", "--top", "--record")
    )
    said = refused("run", *server, "--attach", "0" * 16, "--budget", "3", "--no-history")
    assert "--budget: " in said and "--no-history: " in said
    assert "is not the id of a run" in refused("run", *server, "--resume", "runs/mine")
    assert "add --server URL" in refused("run", "--attach", "0" * 16)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "file").touch()
    job = tmp_path / "job.yaml"
    assert "not empty" in refused("plan", job, *server, "--emit", tmp_path / "out")


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ({"state": "failed", "exit_code": 2, "error": "error: no"}, 2),
        ({"state": "failed", "exit_code": 137, "error": "error: killed"}, 3),
        ({"state": "failed", "exit_code": None, "error": "error: its worker died"}, 3),
        ({"state": "cancelled", "exit_code": None}, 130),
        ({"state": "done", "exit_code": 1}, 1),
        ({"state": "done", "exit_code": 4}, 4),
    ],
)
def test_the_exit_code_is_that_of_the_work(
    tmp_path: Path,
    sent: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    ending: dict[str, Any],
    code: int,
) -> None:
    monkeypatch.setattr(Client, "get", lambda *_: {**DONE, **ending})
    result = call("run", write_job(tmp_path), "--server", "http://127.0.0.1:1")
    assert result.exit_code == code
    assert (ending.get("error") or "") in result.stderr
    again = "--resume 0000000000000000" in result.stderr
    assert again == (ending["state"] in ("failed", "cancelled"))
