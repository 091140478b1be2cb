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


def card(served: Served, text: str, name: str = "README.md") -> Path:
    """A folder of data whose README, or what stands in its place, says this of it."""
    folder = served.models / "data"
    folder.mkdir(exist_ok=True)
    (folder / "a.txt").write_text("x", encoding="utf-8")
    (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    "files",
    [
        "\n  - split: train\n    path: ../secret.txt",
        "\n  - split: train\n    path: /etc/hostname",
        "\n  - split: train\n    path: https://example.org/x.txt",
        "\n  /tmp/outside.jsonl",
        '"\\x2ftmp/outside.jsonl"',
        "{train: [a.txt, data/../../outside.jsonl]}",
        "file:/tmp/outside.jsonl",
        "[{split: train, path: >-\n  ~/outside.jsonl\n  }]",
        "!!binary L2V0Yw==",
        "*files",
        "[a.txt",
    ],
)
def test_a_readme_cannot_name_data_elsewhere(served: Served, files: str) -> None:
    text = f"configs:\n- config_name: default\n  data_files: {files}\n"
    for name, card_text in (
        ("README.md", f"---\n{text}---\n"),
        ("README.md", f"\n \n---\r\n{text}---"),
        (".huggingface.yaml", text),
    ):
        folder = card(served, card_text, name)
        assert name in served.refusals({**JOB, "dataset": str(folder)})["dataset"]
        (folder / name).unlink()


def test_a_readme_may_name_its_own_data_and_hosts_where_nothing_is_read(served: Served) -> None:
    text = "license_link: https://example.org\nnames: {0: no}\nconfigs:\n- config_name: default\n"
    files = "  data_files:\n  - {split: train, path: data/*.txt}\n  sep: '\\t'\n"
    for shown in (f"---\n{text}{files}---\nSee /etc: ../x\n", "# No head\n\n---\nx: [\n---\n", ""):
        folder = card(served, shown)
        assert served.submit({**JOB, "dataset": str(folder)}).status_code == 202


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
