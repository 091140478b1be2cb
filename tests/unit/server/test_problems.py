"""All that is wrong with a job is said at once, whichever rule it comes from, with its place."""

import socket
from collections.abc import Callable
from typing import Any

from autotune.job.yaml_file import parse_yaml, to_yaml
from tests.unit.server.conftest import JOB, Served

WRONG: dict[str, Any] = {
    "model": "/etc",
    "dataset": "/etc/passwd",
    "method": "grpo",
    "reward_funcs": ["os.system", "accuracy_reward"],
    "max_length": "long",
    "headroom": 7,
    "devices": {"count": 10**6, "kinds": "cuda"},
    "fixed": {"optim": "/etc", "optimm": "sgd"},
    "training": {"output_dir": "/etc", "learning_rat": 1, "learning_rate": "/etc"},
}
PLACES = (
    *("model", "dataset", "reward_funcs.0", "max_length", "headroom"),
    *("devices.count", "devices.kinds", "fixed.optim", "fixed.optimm"),
    *("training.output_dir", "training.learning_rat", "training.learning_rate"),
)


def test_what_is_refused_does_not_hide_what_else_is_wrong(served: Served) -> None:
    said = served.refusals(WRONG, device="rtx-0000", parent="0" * 16, model_config_json="[")
    assert set(said) == {*PLACES, "device", "parent", "config.json:1"}
    assert "HTTP" in said["training.output_dir"] and "learning_rat" in said["training.learning_rat"]


def test_when_all_that_was_said_is_mended_the_job_is_taken(served: Served) -> None:
    mended = {**JOB, "method": "grpo", "max_length": None, "reward_funcs": ["accuracy_reward"]}
    mended["training"] = {"learning_rate": 1e-4}
    assert served.submit(mended).status_code == 202


def test_a_text_is_told_by_its_lines_and_data_by_their_fields(served: Served) -> None:
    text = to_yaml(WRONG)
    lines = parse_yaml(text, "job")[1]
    paths = [tuple(int(p) if p.isdigit() else p for p in place.split(".")) for place in PLACES]
    assert set(served.refusals(text)) == {f"job:{lines[path]}" for path in paths}
    assert list(served.refusals({"dataset": JOB["dataset"]})) == ["model"]
    assert list(served.refusals({**JOB, "training": {"packing": "/x"}})) == ["training.packing"]
    assert list(served.refusals({**JOB, "training": {"optim": "foo"}})) == ["training.optim"]


def test_limits_of_a_run_are_told_with_the_rest(serve: Callable[..., Served]) -> None:
    served = serve(allowed={"minutes": 1})
    job = {"model": "/etc", "dataset": {"lengths": {"max": 2**18}}, "max_length": 0, "budget": "9m"}
    said = served.refusals(job, "run")
    assert set(said) == {"model", "dataset.lengths.max", "max_length", "budget"}


def test_nothing_that_is_refused_is_looked_at(served: Served, tmp_path: Any) -> None:
    pipe = tmp_path / "pipe.yaml"
    heard = socket.socket(socket.AF_UNIX)
    heard.bind(str(pipe))  # whoever opens it fails, and says so
    module = tmp_path / "evil.py"
    module.write_text("raise SystemExit('imported')", encoding="utf-8")
    job = {**JOB, "method": "grpo", "max_length": 9, "model": str(tmp_path / "m.json")}
    job |= {"reward_model_path": str(pipe), "reward_funcs": ["evil.reward"]}
    said = served.refusals(job)
    assert set(said) == {"model", "reward_model_path", "reward_funcs.0", "max_length"}
    assert "cannot read" not in str(said) and "there is no" not in str(said)
    heard.close()


def test_forms_tell_all_problems_of_their_fields_and_of_the_job(served: Served) -> None:
    headers = {"x-csrf-token": served.service.local_csrf, "hx-request": "true"}
    form = {"text": "/etc", "count": "two", "max_length": "long", "device": "rtx-0000"}
    page = served.client.post("/", data=form, headers=headers)
    assert page.status_code == 422
    for place in ("model", "devices", "device", "max_length", "dataset.lengths.max"):
        assert f"<code>{place}</code>" in page.text
    form = {"kind": "run", "text": "model: /etc\nbatch: 1\n"}
    page = served.client.post("/", data=form, headers=headers)
    for place in ("job:1", "job:2"):
        assert f"<code>{place}</code>" in page.text
