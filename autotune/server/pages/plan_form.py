"""The form that asks for a plan: its page, and its input: a model's name, a config.json, or a
job."""

import functools
import json
import re
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import RedirectResponse, Response
from markupsafe import Markup
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from autotune.errors import Problem, user_error
from autotune.facts.device_kinds import device_kinds, kinds_of_other_makers, more_kinds
from autotune.facts.known_models import known_models
from autotune.job.methods import METHODS
from autotune.job.yaml_file import parse_yaml, to_yaml
from autotune.server.access.callers import Caller, ServiceOf
from autotune.server.access.job_rules import CONFIG
from autotune.server.api.work import submit
from autotune.server.pages.render import fragment, page, redirect
from autotune.server.service import Service
from autotune.server.store.values import Details, Value
from autotune.server.store.works import Filter
from autotune.server.submission import Submission

_NAME = re.compile(r"[\w.+-]{1,96}(?:/[\w.+-]{1,96})?|/[^\n:]{1,500}", re.ASCII)
_URL = re.compile(
    r"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/"
    r"([\w.+-]{1,96}/[\w.+-]{1,96})(?:/(?:tree|blob|resolve)/\S{0,200})?/?(?:[?#]\S{0,200})?",
    re.ASCII,
)
"""The URL of a model's page. `kindOf` in pages.js knows both patterns, too."""
_OF_CONFIGS = ("model_type", "architectures", "hidden_size", "num_hidden_layers")
_MOST_BARE = 256
"""A number up to this without a unit is memory; above it, it is the name of a GPU (`4090`)."""
_MEMORY = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(GB|GiB|G)?", re.IGNORECASE)
_REWARD = "get_soft_overlong_punishment"
"""TRL's reward function for any prompts; the form has no field for others."""
_WORKER_DEVICE = "this machine"
_Word = Annotated[str, Field(max_length=200)]
router = APIRouter(include_in_schema=False)
MEMORY = ("8 GB", "12 GB", "16 GB", "24 GB", "32 GB", "40 GB", "48 GB", "80 GB")
EXAMPLES = (
    ("Qwen2.5 7B, LoRA in bfloat16, on 24 GB", "qwen2.5-7b", "24 GB", "lora", "bfloat16"),
    ("Llama 3.1 8B, QLoRA, on an RTX 4090", "llama-3.1-8b", "RTX 4090", "qlora", ""),
    ("Qwen2.5 0.5B, all weights, on an H100", "qwen2.5-0.5b", "H100", "full", ""),
)
_Short = Annotated[str, Query(max_length=200)]
FromWork = Annotated[str, Query(alias="from", pattern=r"^([0-9a-f]{16})?$")]


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
    """Return the submission that the form asks for.

    Raises:
        UserError: nothing was pasted.
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
    """Return the value of `--device`: `24 GB` and `24` are memory, everything else is a name."""
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
    """Return a job file with the fields of a way out (`WayJson.fields`); its comments are lost.

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
    """Return a number where the text is one; the job's own rules judge anything else."""
    text = text.strip()
    if not text:
        return None
    return int(text) if text.isascii() and text.isdigit() else text


def count_problems(text: str) -> list[Problem]:
    """Return problems with a number of devices that a submission cannot name."""
    number = _number(text)
    if not isinstance(number, str):
        return []
    what = f"must be a number of devices, but got `{number[:40]}`"
    return [Problem(where="devices", what=what)]


def _count(text: str) -> int | None:
    number = _number(text)
    return number if isinstance(number, int) and number != 1 else None


@router.get("/")
def home() -> Response:
    """Lead to the form of plans."""
    return RedirectResponse("/plan", 303)


@router.get("/plan")
def plan_page(
    request: Request,
    service: ServiceOf,
    holder: Caller,
    origin: FromWork = "",
    way: Annotated[int, Query(ge=0, le=100)] = 0,
    model: _Short = "",
    device: _Short = "",
    tuning: _Short = "lora",
    dtype: _Short = "",
) -> Response:
    """Show the form, empty or filled from a work, with one of its ways out (from 1 on) applied."""
    form = PlanForm(text=model, device=device, tuning=tuning, dtype=dtype)
    work = service.works.get(origin) if origin else None
    if work is not None:
        form = form_of(work, service.works.model_config_json(work.id), way)
    return page(
        request,
        holder,
        "plan_form.html",
        form=form,
        origin=work,
        methods=list(METHODS),
        rewarded=[method.name for method in METHODS.values() if method.rewards_by_functions],
        models=known_models(),
        devices=_device_options(),
        examples=[example for example in EXAMPLES if _is_known(example[1])],
        workers=[worker for worker, _ in service.queue.workers()],
        recent=service.works.search(Filter(kind="plan"), per_page=5),
    )


@router.post("/plan")
async def ask(service: ServiceOf, holder: Caller, form: Annotated[PlanForm, Form()]) -> Response:
    """Put a plan into the queue, and go to its page."""
    return await run_in_threadpool(_ask, service, form, holder.name)


def _ask(service: Service, form: PlanForm, submitter: str) -> Response:
    parent = known_parent(service, form.parent)
    submission = submission_of(form.model_copy(update={"parent": parent or ""}))
    work = submit(service, "plan", submission, submitter, count_problems(form.count))
    return redirect(f"/plans/{work.id}")


def known_parent(service: Service, id: str) -> str | None:
    """Return the work that a form is a variation of, unless it was deleted since."""
    return id if id and service.works.state(id) is not None else None


def form_of(work: Details, config: str | None, way: int = 0) -> PlanForm:
    """Return the form that asks for a work again.

    Args:
        way: the way out that is applied, from 1 on; 0: none.
    """
    fields = way_of(work, way)
    given = dict(argument.removeprefix("--").split("=", 1) for argument in work.arguments)
    return PlanForm(
        text=changed_job(work.job, fields) if fields else work.job,
        config=config or "",
        device=device_text(given.get("device", "")),
        count="1" if "devices" in fields else given.get("devices", "1"),
        parent=work.id,
    )


def way_of(work: Details, number: int) -> dict[str, Any]:
    """Return the fields of a job that a way out of a plan changes; none where there is no such
    way."""
    advice = (work.result or {}).get("advice") or {"ways": []}
    ways = advice["ways"][number - 1 : number] if number else []
    return dict(ways[0]["fields"]) if ways else {}


@functools.cache
def device_names() -> tuple[str, ...]:
    """Return the GPUs that can be planned for."""
    kinds = (*device_kinds(), *kinds_of_other_makers(), *more_kinds())
    return tuple(sorted({kind.name for kind in kinds}, key=str.lower))


@functools.cache
def _device_options() -> Markup:
    """Return them as options of a list: some hundred, made once."""
    return Markup(fragment("devices.html", names=(*MEMORY, *device_names())))


def _is_known(name: str) -> bool:
    return any(name == model.name for model in known_models())
