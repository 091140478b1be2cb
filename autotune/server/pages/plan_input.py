"""What was pasted into the form of a plan: a model's name, a config.json, or a job. Pure."""

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from autotune.errors import Problem, user_error
from autotune.job.methods import METHODS
from autotune.job.yaml_file import parse_yaml, to_yaml
from autotune.server.access.job_rules import CONFIG
from autotune.server.store.values import Value
from autotune.server.submission import Submission

_NAME = re.compile(r"[\w.+-]{1,96}(?:/[\w.+-]{1,96})?|/[^\n:]{1,500}", re.ASCII)
_URL = re.compile(
    r"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/"
    r"([\w.+-]{1,96}/[\w.+-]{1,96})(?:/(?:tree|blob|resolve)/\S{0,200})?/?(?:[?#]\S{0,200})?",
    re.ASCII,
)
"""Of a model's page. `kindOf` in pages.js knows both, too."""
_OF_CONFIGS = ("model_type", "architectures", "hidden_size", "num_hidden_layers")
_MOST_BARE = 256
"""A number up to this without a unit is memory; above it, it is the name of a GPU (`4090`)."""
_MEMORY = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(GB|GiB|G)?", re.IGNORECASE)
_REWARD = "get_soft_overlong_punishment"
"""TRL's reward function for any prompts; the form has no field for others."""
_WORKER_DEVICE = "this machine"
_Word = Annotated[str, Field(max_length=200)]


class PlanForm(Value):
    """The form, as a browser sends it."""

    text: str = ""
    """The box: a name, a config.json, or a job."""
    config: str = ""
    """A config.json that a job in the box names."""
    device: Annotated[str, Field(max_length=90)] = ""
    count: _Word = "1"
    method: _Word = "sft"
    tuning: _Word = "lora"
    dtype: _Word = ""
    global_batch_size: _Word = "16"
    max_length: _Word = "2048"
    p50: _Word = ""
    p99: _Word = ""
    parent: Annotated[str, Field(pattern=r"^([0-9a-f]{16})?$")] = ""


def submission_of(form: PlanForm) -> Submission:
    """Return what the form asks for.

    Raises:
        UserError: nothing was pasted, or not what it looks like.
    """
    text = form.text.strip()
    if not text:
        hint = "a name such as `qwen2.5-7b`, a config.json, or a job"
        raise user_error("nothing was pasted", where="model or job", hint=hint)
    config: str | None = form.config.strip() or None
    job: str | dict[str, Any] = form.text
    if is_name(text):
        job = job_of(form, name_of(text))
    elif is_config(text):
        job, config = job_of(form, CONFIG), text
    device = device_of(form.device)
    return Submission(
        job=job,
        model_config_json=config,
        device=device or None,
        devices=_count(form.count),
        parent=form.parent or None,
    )


def is_name(text: str) -> bool:
    """True if it is the name of a model, its folder, or its page on the hub."""
    return bool(_NAME.fullmatch(text) or _URL.fullmatch(text))


def name_of(text: str) -> str:
    """Return the name of a model; of its page on the hub, the id."""
    page = _URL.fullmatch(text)
    return page[1] if page else text


def is_config(text: str) -> bool:
    """True if it is a config.json, whole or broken."""
    if not text.startswith("{"):
        return False
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return any(f'"{name}"' in text for name in _OF_CONFIGS)
    return isinstance(data, dict) and any(name in data for name in _OF_CONFIGS)


def device_of(text: str) -> str:
    """Return what `--device` takes: `24 GB` is memory and so is `24`, everything else a name."""
    text = text.strip()
    match = _MEMORY.fullmatch(text)
    if text.lower() in ("", _WORKER_DEVICE):
        return ""
    if match is None or (match[2] is None and float(match[1]) > _MOST_BARE):
        return text
    return f"memory={match[1]}GiB"


def device_text(device: str) -> str:
    """Return the same as a person writes it: `memory=24GiB` -> `24 GB`."""
    match = re.fullmatch(r"memory=([0-9.]+)GiB", device)
    return device if match is None else f"{match[1]} GB"


def job_of(form: PlanForm, model: str) -> dict[str, Any]:
    """Return the job of a model and the form's fields."""
    longest = _number(form.max_length)
    p50, p99 = _number(form.p50), _number(form.p99)
    known = [value for value in (longest, p99, p50) if isinstance(value, int)]
    lengths: dict[str, Any] = {"max": max(known) if known else longest}
    lengths |= {name: value for name, value in (("p50", p50), ("p99", p99)) if value is not None}
    job: dict[str, Any] = {
        "model": model,
        "method": form.method,
        "dataset": {"lengths": lengths},
        "tuning": form.tuning,
        "global_batch_size": _number(form.global_batch_size),
    }
    method = METHODS.get(form.method)
    if method is None or not method.online:
        job["max_length"] = longest
    if method is not None and method.rewards_by_functions:
        job["reward_funcs"] = [_REWARD]
    if form.dtype:
        job["recipe"] = {"dtype": [form.dtype]}
    return {name: value for name, value in job.items() if value is not None}


def changed_job(job: str, fields: Mapping[str, Any]) -> str:
    """Return a job file with some fields as a way out has them (`WayJson.fields`); its comments are
    lost.

    Raises:
        UserError: the job cannot be read.
    """
    data = parse_yaml(job, "job")[0]
    for name, value in fields.items():
        if value is None:
            data.pop(name, None)
        elif name == "devices":
            data[name] = {**data.get(name, {}), **value}
        else:
            data[name] = value
    return to_yaml(data)


def _number(text: str) -> int | str | None:
    """Return a number where it is one; the job's own rules say what is wrong with anything else."""
    text = text.strip()
    if not text:
        return None
    return int(text) if text.isascii() and text.isdigit() else text


def count_problems(text: str) -> list[Problem]:
    """Return what is wrong with a number of devices, as far as a submission cannot say it."""
    number = _number(text)
    if not isinstance(number, str):
        return []
    what = f"must be a number of devices, but got `{number[:40]}`"
    return [Problem(where="devices", what=what)]


def _count(text: str) -> int | None:
    number = _number(text)
    return number if isinstance(number, int) and number != 1 else None
