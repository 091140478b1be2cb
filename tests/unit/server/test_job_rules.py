"""What a job over HTTP may say: every field is judged, what is not allowed is refused before it is
read, and files are read where the operator allows it."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.cli import plan
from autotune.facts.stack import field_types
from autotune.job.job import Job
from autotune.job.methods import METHODS
from autotune.server.access import job_rules
from autotune.server.access.untrusted import MOST_TEXT
from autotune.server.settings import Allowed
from autotune.server.submission import Submission, accepted
from tests.unit.server.conftest import JOB, Served

QUICKSTART = Path(__file__).parents[3] / "examples" / "quickstart"
DATA = {"model": "qwen2.5-0.5b", "dataset": {"lengths": {"max": 128}}}
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


def test_every_field_of_a_job_has_a_rule() -> None:
    rules = (job_rules.PLACES, job_rules.WORDS, job_rules.KNOBS, job_rules.PLAIN, job_rules.SPECIAL)
    judged = [name for rule in rules for name in rule]
    assert sorted(judged) == sorted(Job.model_fields)


def test_every_allowed_training_field_is_one_and_names_nothing() -> None:
    fields = {name: kind for method in METHODS for name, kind in field_types(method).items()}
    allowed = job_rules.TRAINING_NUMBERS | job_rules.TRAINING_WORDS | job_rules.TRAINING_TOKENS
    older = {"warmup_ratio", "group_by_length", "gradient_checkpointing"}
    newer = {"activation_checkpointing"}
    assert allowed - fields.keys() <= older | newer
    for name in job_rules.TRAINING_NUMBERS & fields.keys():
        assert "str" not in fields[name].replace("IntervalStrategy | str", ""), name
    for part in ("path", "dir", "hub", "token", "url", "host", "port", "file", "code", "kwargs"):
        named = {name for name in allowed if part in name.split("_")}
        assert named <= job_rules.TRAINING_TOKENS | {"lr_scheduler_kwargs"}, part


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("output_dir", "/tmp/x"),
        ("trust_remote_code", True),
        ("push_to_hub", True),
        ("hub_token", "t"),
        ("report_to", "wandb"),
        ("resume_from_checkpoint", "/etc"),
        ("deepspeed", {"zero_optimization": {}}),
        ("accelerator_config", "/etc/passwd"),
        ("chat_template_path", "/etc/passwd"),
        ("model_init_kwargs", {"trust_remote_code": True}),
        ("vllm_server_base_url", "http://10.0.0.1"),
        ("vllm_server_host", "10.0.0.1"),
        ("dataset_num_proc", 10_000),
        ("logging_dir", "/tmp"),
        ("optim_args", "x=y"),
        ("a_field_of_tomorrow", 1),
        ("learning_rate", "/etc/passwd"),
        ("dataset_text_field", "../x"),
        ("dataloader_num_workers", 17),
        ("lr_scheduler_kwargs", {"path": "/etc"}),
        ("lora_modules_to_save", ["(a+)+$"]),
    ],
)
def test_training_fields_that_name_files_hosts_or_code_are_refused(
    served: Served, field: str, value: Any
) -> None:
    assert f"training.{field}" in served.refusals({**JOB, "training": {field: value}})


def test_a_device_has_no_more_memory_than_one_can_have(served: Served) -> None:
    assert served.submit(JOB, device="memory=4090GiB").status_code == 202
    assert "device" in served.refusals(JOB, device="memory=99999999999GiB")


def test_usual_training_fields_are_taken(served: Served) -> None:
    training = {
        "learning_rate": 2e-4,
        "lr_scheduler_type": "cosine_with_min_lr",
        "lr_scheduler_kwargs": {"min_lr_rate": 0.1},
        "warmup_steps": 10,
        "eos_token": "<|im_end|>",
        "eval_strategy": "no",
        "seed": 1,
    }
    assert served.submit({**JOB, "training": training}).status_code == 202


def test_the_operator_can_allow_more(serve: Any) -> None:
    job = {**JOB, "training": {"trust_remote_code": True}}
    allowed = {"training": ["trust_remote_code"], "reward_functions": ["mine.reward"]}
    served = serve(allowed=allowed)
    assert served.submit(job).status_code == 202
    grpo = {"method": "grpo", "max_length": None, **JOB}
    assert served.submit({**grpo, "reward_funcs": ["mine.reward"]}).status_code == 202
    assert "reward_funcs.0" in served.refusals({**grpo, "reward_funcs": ["os.system"]})


@pytest.mark.parametrize("name", ["os.system", "my_rewards.by_length", "eval_reward()", "../x"])
def test_reward_functions_by_import_path_are_refused(served: Served, name: str) -> None:
    job = {"method": "grpo", "max_length": None, **JOB, "reward_funcs": [name]}
    assert list(served.refusals(job)) == ["reward_funcs.0"]


@pytest.mark.parametrize("section", ["fixed", "recipe"])
def test_knobs_name_no_place(served: Served, section: str) -> None:
    values: list[tuple[str, Any]] = [("optim", "/etc"), ("optim", "a/b"), ("optim", {"a": 1})]
    values.append(("attn_implementation", "kernels-community/flash-attn2"))  # code of a hub
    for name, value in values:
        given = [value] if section == "recipe" else value
        assert f"{section}.{name}" in served.refusals({**JOB, section: {name: given}})


def test_a_job_of_an_hour_is_not_taken_where_a_minute_is_allowed(serve: Any) -> None:
    served = serve(allowed={"minutes": 1})
    job = {**JOB, "model": str(served.models / "m")}
    for budget in ("60m", {"minutes": 60}, 40, {"minutes": 1, "probe_minutes": 60}):
        assert all(
            f.startswith("budget") for f in served.refusals({**job, "budget": budget}, "run")
        )
    assert "budget" in served.refusals(job, "run"), "the default is 30 minutes"
    sound = {"minutes": 1, "probe_minutes": 1}
    assert served.submit({**job, "budget": sound}, "run").status_code == 202
    lease = served.client.post(
        "/api/v1/worker/lease", json={"worker": WORKER, "kinds": ["run"]}, headers=_worker(served)
    )
    assert lease.json()["limit_s"] == 120


WORKER = {
    "name": "w",
    "device_kind": "cpu",
    "devices": 1,
    "device_name": "a processor",
}


def _worker(served: Served) -> dict[str, str]:
    return served.token("worker", "w")


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"dataset": {"lengths": {"max": 10**9}}}, "dataset.lengths.max"),
        ({"devices": {"count": 10**6}}, "devices.count"),
        ({"max_length": 10**8}, "max_length"),
        ({"global_batch_size": 10**15}, "global_batch_size"),
        ({"global_batch_size": 2**21}, "global_batch_size"),
        ({"global_batch_size": "900000000 tokens", "max_length": 1}, "global_batch_size"),
        ({"tuning": "lora", "recipe": {"lora_r": list(range(1, 300))}}, "recipe"),
    ],
)
def test_sizes_that_would_take_a_machine_down_are_refused(
    served: Served, change: dict[str, Any], where: str
) -> None:
    said = served.refusals({**JOB, **change})
    assert where in said or f"`{where}`" in str(said)


def test_a_run_makes_no_endless_rows(served: Served) -> None:
    job = {"model": str(served.models / "m"), "dataset": {"lengths": {"max": 2**20}}}
    assert "dataset.lengths.max" in served.refusals({**job, "max_length": None}, "run")


BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))


@pytest.mark.parametrize(
    "text",
    [
        BOMB,
        "model: " + "x" * (MOST_TEXT + 1),
        "a: " + "[" * 5000,
        "- " * 5000,
        "model: !!python/object/apply:os.system [id]",
        "model: !!python/name:os.system",
        "model: qwen2.5-0.5b\nglobal_batch_size: 0x" + "f" * 5000,
        'model: "\\0"\ndataset: x',
        "model: .nan\ndataset: x",
        "model: a\nmodel: b\ndataset: x",
        "1: 2",
        "\x1b[31m",
    ],
)
def test_yaml_that_is_a_bomb_or_code_is_refused_at_once(served: Served, text: str) -> None:
    began = time.monotonic()
    assert served.submit(text).status_code == 422
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    "body",
    [
        '{"job": ' + "[" * 100_000,
        '{"job": ' + '{"a": ' * 500 + "1" + "}" * 501,
        '{"job": {"model": "m", "dataset": ' + "1" * 5000 + "}}",
        '{"job": {"model": "m", "dataset": "d", "headroom": 1e999}}',
        '{"job": {"model": "m", "dataset": "d", "headroom": NaN}}',
        '{"job": {"model": "\\ud800", "dataset": "d"}}',
        '{"job": {"model": "\\u0000", "dataset": "d"}}',
        '{"job": "\\ud800"}',
        '{"job": {"\\ud800": 1}}',
        '{"job": {"columns": {' + ",".join(f'"{n}": "x"' for n in range(30_000)) + "}}}",
        '{"job": {}, "parent": "' + "x" * 5000 + '"}',
        '{"job": {}, "device": "' + "x" * 5000 + '"}',
        '{"job": {}, "unknown": 1}',
        "",
        "null",
        "\ufeff{}",
    ],
)
def test_json_that_is_a_bomb_or_broken_is_refused_at_once(served: Served, body: str) -> None:
    began = time.monotonic()
    answer = served.client.post(
        "/api/v1/plans", content=body.encode(), headers={"content-type": "application/json"}
    )
    assert answer.status_code in (400, 422), answer.text[:200]
    assert time.monotonic() - began < 10


CONFIG = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64}


@pytest.mark.parametrize(
    "change",
    [
        {"num_hidden_layers": 10**9},
        {"num_hidden_layers": 1000, "num_local_experts": 4000},
        {"text_config": {"num_hidden_layers": 10**9}},
        {"hidden_size": 10**15},
        {"layer_types": ["full_attention"] * 5000},
        {"architectures": ["../evil"]},
        {"architectures": ["os.system"]},
        {"architectures": "x"},
        {"model_type": 7},
        {"model_type": None},
    ],
)
def test_configs_that_cannot_be_laid_out_are_refused(
    served: Served, change: dict[str, Any]
) -> None:
    job = {**DATA, "model": "config.json"}
    refused = served.refusals(job, model_config_json={**CONFIG, **change})
    assert list(refused) == ["config.json"]


def test_a_config_loses_what_would_load_code(served: Served) -> None:
    code = {
        "auto_map": {"AutoConfig": "evil.Config"},
        "attn_implementation": "sdpa",
        "_name_or_path": "/etc/passwd",
        "vision_config": {"auto_map": {"AutoModel": "evil"}, "hidden_size": 8},
    }
    job = {**DATA, "model": "config.json"}
    for config in ({**CONFIG, **code}, json.dumps({**CONFIG, **code})):
        work = served.submit(job, model_config_json=config).json()
        kept = json.loads(str(served.service.works.model_config_json(work["id"])))
        assert kept == {**CONFIG, "vision_config": {"hidden_size": 8}}
    kernel = {**CONFIG, "attn_implementation": "someone/kernel"}
    answer = served.submit(job, model_config_json=kernel)
    assert answer.status_code == 422 and "names code of a hub" in answer.text


def test_columns_and_splits_are_names(served: Served, tmp_path: Path) -> None:
    data = served.models / "d.jsonl"
    data.write_text('{"text": "x"}\n', encoding="utf-8")
    job = {**JOB, "dataset": str(data)}
    assert served.submit(job).status_code == 202
    for field in ("dataset_config", "dataset_train_split", "dataset_test_split"):
        assert field in served.refusals({**job, field: "../../x"})


def test_what_is_asked_of_a_plan_are_flags_of_the_command() -> None:
    asked = {"device": "RTX 3070", "devices": 2, "stack": "installed", "only_default": True}
    submission = Submission(job=DATA, **asked)
    work = accepted("plan", submission, Allowed(), "ada")
    flags = ["--device=RTX 3070", "--devices=2", "--stack=installed", "--only-default"]
    assert work.arguments == flags
    context = plan.command.make_context("plan", ["job.yaml", *flags])
    assert context.params["only_default"] and context.params["devices"] == 2
    assert accepted("plan", Submission(job=DATA), Allowed(), "ada").arguments == []


def test_several_machines_are_flags_of_the_command_too() -> None:
    device = ",".join(f"{count}xrtx-pro-6000-server" for count in range(1, 9))
    asked = {"device": device, "prices": "listed", "deadline": "20h", "at_most": "50$"}
    work = accepted("plan", Submission(job=DATA, **asked), Allowed(), "ada")
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in asked.items()]
    assert work.arguments == flags
    assert device.startswith(work.device.removesuffix("…")) and len(work.device) == 128
    context = plan.command.make_context("plan", ["job.yaml", "--record", "there", *flags])
    assert context.params["at_most"] == "50$" and context.params["record"] == Path("there")


def test_all_that_is_wrong_with_several_machines_is_said_at_once(served: Served) -> None:
    wrong = {"only_default": True, "prices": "/etc/passwd", "deadline": "soon", "at_most": "9€"}
    assert set(served.refusals(JOB, device="all", **wrong)) == set(wrong)
    for device in ("h100,cpu", "h100,rtx-0000", "h100,,", "memory=9999GiB,h100"):
        assert list(served.refusals(JOB, device=device)) == ["device"]
    many = ",".join(f"{count}xh100" for count in range(1, 26))
    assert "25 machines" in served.refusals(JOB, device=many)["device"]
    assert "no prices" in served.refusals(JOB, device="h100", at_most="9$")["at_most"]
    assert list(served.refusals(JOB, prices="listed")) == ["device"]
    job = {**JOB, "model": str(served.models / "m")}
    assert list(served.refusals(job, "run", device="h100,l40s")) == ["device"]


def test_the_first_line_by_formula_is_the_first_event(served: Served) -> None:
    job = {"model": "qwen2.5-7b", "dataset": {"lengths": {"max": 2048}}, "tuning": "lora"}
    work = served.submit(job, device="rtx-4090").json()
    (event,) = served.service.events.after(work["id"], 0)
    assert (work["events"], event.kind) == (1, "by_formula")
    assert "tokens/s" in event.data["text"] and "by formula" in event.data["text"]
    for fields in ({}, {"device": "cpu"}, {"device": "2xh100,4xl40s"}, {"devices": 2}):
        asked = {"device": "h100"} | fields if fields else {}
        assert served.submit(job, **asked).json()["events"] == 0


def test_the_worker_of_a_plan_with_a_first_line_adds_to_it(served: Served) -> None:
    work = served.submit({**DATA, "model": "qwen2.5-7b"}, device="h200").json()
    headers = _worker(served)
    post = served.client.post
    asked = {"worker": WORKER, "kinds": ["plan"]}
    assert post("/api/v1/worker/lease", json=asked, headers=headers).json()["id"] == work["id"]
    lines = [{"utc": 1.0, "kind": "line", "data": {"text": "so far"}}]
    body = {"worker": "w", "attempt": 1, "source": "errors", "first": 0, "lines": lines}
    post(f"/api/v1/worker/works/{work['id']}/events", json=body, headers=headers)
    kinds = [event.kind for event in served.service.events.after(work["id"], 0)]
    assert kinds == ["by_formula", "line"]


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


def test_a_relative_path_is_looked_for_in_the_allowed_folders(serve: Serve, tmp_path: Path) -> None:
    text = (QUICKSTART / "job.yaml").read_text(encoding="utf-8")
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        (folder / "build").mkdir(parents=True)
    for name in ("model", "data"):
        (folders[1] / "build" / name).mkdir()
    served = serve(allowed={"folders": [str(folder) for folder in folders]})
    work = served.service.works.get(served.submit(text, "run").json()["id"])
    assert work is not None and work.job == text.replace(": build", f": {folders[1]}/build")
    assert served.submit({**JOB, "model": "./build/model"}).status_code == 202
    (folders[0] / "build" / "model").symlink_to(tmp_path)
    (folders[0] / "build" / "data").symlink_to(folders[1] / "build" / "data")
    lengths = {"dataset": {"lengths": {"max": 8}}}
    for name in ("build/model", "build/data"):  # a link that leads out is passed over
        assert served.submit({**lengths, "model": name}, "run").status_code == 202
    for name in ("build", "build/other", "../first", "../second/build/model", "."):
        answer = served.submit({**lengths, "model": name}, "run")
        assert answer.status_code == 422 and str(folders[0]) in answer.text
        assert "hub: true" not in answer.text


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


def test_a_secret_and_a_slip_of_the_pen_are_named_as_such(served: Served) -> None:
    answer = served.submit({**JOB, "training": {"hub_token": "x", "num_train_epoch": 3}})
    assert "is a secret" in answer.text and "did you mean `num_train_epochs`?" in answer.text
