"""A job over HTTP reads where the operator says so, whatever it calls the place."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.server.conftest import JOB, Served

Serve = Callable[..., Served]


OTHERS = (
    "/etc/passwd",
    "/etc",
    "~root/x",
    "~/x",
    "./x",
    "../x",
    "..",
    ".",
    "x.json",
    "x.jsonl",
    "../x.jsonl",
    "file:///etc/passwd",
    "https://example.org/x.jsonl",
    "hf://datasets/a/b",
    "s3://bucket/x",
    "a/b",
    "json",
    "attempt-1",
    "a/../../b",
    "//etc/passwd",
    "/proc/self/environ",
    "\uff0fetc\uff0fpasswd",
    "config.json",
    " /etc/passwd",
    "/etc/passwd ",
    "x\ny",
    "a" * 5000,
)


@pytest.mark.parametrize("field", ["model", "dataset", "reward_model_path"])
def test_other_places_are_refused_and_not_looked_at(served: Served, field: str) -> None:
    job = {**JOB, "method": "grpo", "max_length": None, "reward_funcs": ["accuracy_reward"]}
    for name in OTHERS:
        refused = served.refusals({**job, field: name})
        assert list(refused) == [field], name
        assert "there is no" not in refused[field], "it would tell what files there are"


def test_folders_are_allowed_with_what_lies_in_them(served: Served) -> None:
    assert served.submit({**JOB, "model": str(served.models / "m")}).status_code == 202
    data = served.models / "data"
    data.mkdir()
    (data / "train.jsonl").write_text('{"text": "x"}\n', encoding="utf-8")
    (data / "latest.jsonl").symlink_to(data / "train.jsonl")
    assert served.submit({**JOB, "dataset": str(data)}).status_code == 202
    away = f"{served.models}/m/../../x"
    assert "model" in served.refusals({**JOB, "model": away})
    assert "model" in served.refusals({**JOB, "model": f"{served.models}-2/m"})
    assert "model" in served.refusals({**JOB, "model": str(served.models).upper()})


def test_links_that_lead_out_are_refused(served: Served, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "x.jsonl").write_text("{}", encoding="utf-8")
    link = served.models / "link"
    link.symlink_to(secret)
    assert "dataset" in served.refusals({**JOB, "dataset": str(link)})
    assert "dataset" in served.refusals({**JOB, "dataset": str(link / "x.jsonl")})
    inside = served.models / "inside"
    (inside / "deep").mkdir(parents=True)
    (inside / "deep" / "train.jsonl").symlink_to(secret / "x.jsonl")
    assert "link" in served.refusals({**JOB, "dataset": str(inside)})["dataset"]
    (inside / "deep" / "train.jsonl").unlink()
    (inside / "deep" / "more").symlink_to(secret)
    assert "link" in served.refusals({**JOB, "dataset": str(inside)})["dataset"]
    loop = served.models / "loop"
    loop.symlink_to(loop)
    assert "dataset" in served.refusals({**JOB, "dataset": str(loop)})


def test_an_allowed_folder_may_be_a_link_itself(serve: Serve, tmp_path: Path) -> None:
    real = tmp_path / "disk"
    (real / "m").mkdir(parents=True)
    (tmp_path / "short").symlink_to(real)
    served = serve(allowed={"folders": [str(tmp_path / "short")]})
    assert served.submit({**JOB, "model": str(tmp_path / "short" / "m")}).status_code == 202


@pytest.mark.parametrize("path", ["../secret.txt", "/etc/hostname", "https://example.org/x.txt"])
def test_a_readme_cannot_name_data_elsewhere(served: Served, path: str) -> None:
    folder = served.models / "data"
    folder.mkdir()
    (folder / "a.txt").write_text("x", encoding="utf-8")
    readme = "---\nconfigs:\n- data_files:\n  - split: train\n    path: {}\n---\n"
    (folder / "README.md").write_text(readme.format("data/*.txt"), encoding="utf-8")
    assert served.submit({**JOB, "dataset": str(folder)}).status_code == 202
    (folder / "README.md").write_text(readme.format(path), encoding="utf-8")
    assert "README" in served.refusals({**JOB, "dataset": str(folder)})["dataset"]


def test_devices_and_pipes_are_no_files(served: Served) -> None:
    os.mkfifo(served.models / "pipe.jsonl")
    assert "dataset" in served.refusals({**JOB, "dataset": str(served.models / "pipe.jsonl")})


def test_the_hub_is_asked_where_that_is_allowed(serve: Serve) -> None:
    served = serve(allowed={"hub": True})
    assert served.submit({**JOB, "model": "Qwen/Qwen2.5-7B"}).status_code == 202
    for name in ("a/b/c", "a/..", "https://a/b", "-x/y", "a b/c"):
        assert "model" in served.refusals({**JOB, "model": name})
    for name in ("json", "text", "imdb"):
        assert "dataset" in served.refusals({**JOB, "dataset": name})


def test_checked_files_are_read_as_text_alone(served: Served, tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text('{"zero_optimization": {"stage": 77}}', encoding="utf-8")
    files = {
        "trainer": "learning_rate: 1",
        "accelerate": f"deepspeed_config: {{deepspeed_config_file: {secret}}}",
        "method": "sft",
    }
    answer = served.client.post("/api/v1/check", json=files)
    assert answer.status_code == 422
    answer = served.client.post("/api/v1/check", json={**files, "deepspeed": "{}"})
    assert "77" not in answer.text
    for name, text in (
        ("trainer", "a: &a [1]\nb: *a"),
        ("trainer", "x: 0b" + "1" * 30_000),
        ("accelerate", "[" * 5000),
        ("deepspeed", "[" * 100_000),
        ("deepspeed", '{"a": NaN}'),
        ("trainer", "x: !!timestamp y"),
        ("method", "/etc"),
    ):
        sound = {"trainer": "a: 1", "accelerate": "b: 1", "deepspeed": "{}", "method": "sft"}
        answer = served.client.post("/api/v1/check", json={**sound, name: text})
        assert answer.status_code == 422, (name, answer.text)
