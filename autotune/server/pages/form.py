"""The form: a model, a job or another tool's file is pasted, and planned, or run here."""

import contextlib
import functools
import json
import re
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import Response
from markupsafe import Markup
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from autotune.errors import Problem, user_error
from autotune.facts.device_kinds import device_kinds, kinds_of_other_makers, more_kinds
from autotune.job.methods import METHODS
from autotune.job.yaml_file import parse_yaml, to_yaml
from autotune.plain_data import NONSENSE
from autotune.server.access.callers import Caller, ServiceOf
from autotune.server.access.job_rules import CONFIG
from autotune.server.api.work import submit
from autotune.server.pages.render import fragment, page, redirect
from autotune.server.service import Service
from autotune.server.store.values import Details, Kind, Value
from autotune.server.store.works import Filter
from autotune.server.submission import Submission

router = APIRouter(include_in_schema=False)
_NAME = re.compile(r"[\w.+-]{1,96}(?:/[\w.+-]{1,96})?|/[^\n:]{1,500}", re.ASCII)
_URL = re.compile(
    r"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/"
    r"([\w.+-]{1,96}/[\w.+-]{1,96})(?:/(?:tree|blob|resolve)/\S{0,200})?/?(?:[?#]\S{0,200})?",
    re.ASCII,
)
"""The URL of a model's page."""
_OF_CONFIGS = ("model_type", "architectures", "hidden_size", "num_hidden_layers")
_REWARD = "get_soft_overlong_punishment"
"""TRL's reward function for any prompts; the form has no field for others."""
MEMORY = ("8 GB", "12 GB", "16 GB", "24 GB", "32 GB", "40 GB", "48 GB", "80 GB")
EXAMPLES = (
    ("Qwen2.5 7B, LoRA, on 24 GB", "qwen2.5-7b", "24 GB", "lora"),
    ("Llama 3.1 8B, QLoRA, on an RTX 4090", "llama-3.1-8b", "RTX 4090", "qlora"),
    ("Qwen2.5 7B, LoRA: what to rent", "qwen2.5-7b", "all", "lora"),
)
_Word = Annotated[str, Field(max_length=200)]
_Short = Annotated[str, Query(max_length=200)]
FromWork = Annotated[str, Query(alias="from", pattern=r"^([0-9a-f]{16})?$")]


class JobForm(Value):
    """The form, as a browser sends it."""

    kind: Kind = "plan"
    text: str = ""
    """The box: a name, a config.json, a job, or another tool's file. Empty: the parent's job."""
    device: Annotated[str, Field(max_length=500)] = ""
    count: _Word = ""
    method: _Word = "sft"
    tuning: _Word = "lora"
    global_batch_size: _Word = "16"
    max_length: _Word = "2048"
    p50: _Word = ""
    p99: _Word = ""
    prices: _Word = ""
    deadline: Annotated[str, Field(max_length=20)] = ""
    at_most: Annotated[str, Field(max_length=20)] = ""
    parent: Annotated[str, Field(pattern=r"^([0-9a-f]{16})?$")] = ""


def submission_of(form: JobForm, config: str | None = None) -> Submission:
    """Return the submission that the form asks for.

    Args:
        config: the config.json that came with the work of which this is a variation.

    Raises:
        UserError: nothing was pasted.
    """
    text = form.text.strip()
    if not text:
        hint = "a name such as `qwen2.5-7b`, a config.json, a job, or another tool's file"
        raise user_error("nothing was pasted", where="model or job", hint=hint)
    job: str | dict[str, Any] = form.text
    if is_name(text):
        job = job_of(form, name_of(text))
    elif is_config(text):
        job, config = job_of(form, CONFIG), text
    if form.kind == "run":
        return Submission(job=job, model_config_json=config, parent=form.parent or None)
    return Submission(
        job=job,
        model_config_json=config,
        device=form.device.strip() or None,
        devices=int(form.count) if form.count.strip().isdecimal() else None,
        prices="listed" if form.prices else None,
        deadline=form.deadline.strip() or None,
        at_most=form.at_most.strip() or None,
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


def job_of(form: JobForm, model: str) -> dict[str, Any]:
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
    return {name: value for name, value in job.items() if value is not None}


def _number(text: str) -> int | str | None:
    """Return a number where the text is one; the job's own rules judge anything else."""
    text = text.strip()
    if not text:
        return None
    return int(text) if text.isascii() and text.isdigit() else text


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


@router.get("/")
def form_page(
    request: Request,
    service: ServiceOf,
    holder: Caller,
    origin: FromWork = "",
    way: Annotated[int, Query(ge=0, le=100)] = 0,
    model: _Short = "",
    device: _Short = "",
    tuning: _Short = "lora",
) -> Response:
    """Show the form, empty or filled from a work, with one of its ways out (from 1 on) applied."""
    form = JobForm(text=model, device=device, tuning=tuning)
    work = service.works.get(origin) if origin else None
    if work is not None:
        form = form_of(work, way)
    return page(
        request,
        holder,
        "form.html",
        form=form,
        origin=work,
        methods=[method.name for method in METHODS.values() if not method.teacher],
        rewarded=[method.name for method in METHODS.values() if method.rewards_by_functions],
        devices=_device_options(),
        examples=EXAMPLES,
        workers=service.queue.workers(),
        allowed=service.settings.allowed,
        recent=service.works.search(Filter(), per_page=5),
    )


@router.post("/")
async def ask(service: ServiceOf, holder: Caller, form: Annotated[JobForm, Form()]) -> Response:
    """Put a plan or a run into the queue, and go to its page."""
    return await run_in_threadpool(_ask, service, form, holder.name)


def _ask(service: Service, form: JobForm, submitter: str) -> Response:
    parent = service.works.get(form.parent) if form.parent else None
    config = None
    if parent is None:  # it may have been deleted since
        form = form.model_copy(update={"parent": ""})
    else:
        config = service.works.model_config_json(parent.id)
        form = form.model_copy(update={"text": form.text if form.text.strip() else parent.job})
    known = []
    if form.count.strip() and not form.count.strip().isdecimal():
        what = f"must be a number of devices, but got `{form.count[:40]}`"
        known.append(Problem(where="devices", what=what))
    asked = submission_of(form, config)
    if (
        parent is not None and form.kind == parent.kind == "plan"
    ):  # the form has no fields for these
        given = _given(parent)
        nodes = {"nodes": int(given["nodes"])} if "nodes" in given else {}
        asked = asked.model_copy(update={**nodes, "stack": given.get("stack", "any")})
    work = submit(service, form.kind, asked, submitter, known)
    return redirect(f"/{form.kind}s/{work.id}")


def form_of(work: Details, way: int = 0) -> JobForm:
    """Return the form that asks for a work again.

    Args:
        way: the way out that is applied, from 1 on; 0: none.
    """
    fields = way_of(work, way)
    given = _given(work)
    return JobForm(
        text=changed_job(work.job, fields) if fields else work.job,
        device=given.get("device", ""),
        count="" if "devices" in fields else given.get("devices", ""),
        prices=given.get("prices", ""),
        deadline=given.get("deadline", ""),
        at_most=given.get("at-most", ""),
        parent=work.id,
    )


def _given(work: Details) -> dict[str, str]:
    """Return the arguments of a plan that have a value."""
    named = (argument for argument in work.arguments if "=" in argument)
    return dict(argument.removeprefix("--").split("=", 1) for argument in named)


def way_of(work: Details, number: int) -> dict[str, Any]:
    """Return the fields of a job that a way out of a plan changes; none where there is no such
    way."""
    with contextlib.suppress(*NONSENSE):  # a worker may have made it up
        ways = (work.result or {})["advice"]["ways"][number - 1 : number] if number else []
        return dict(ways[0]["fields"]) if ways else {}
    return {}


@functools.cache
def _device_options() -> Markup:
    """Return the GPUs that can be planned for, as options of a list: some hundred, made once."""
    kinds = (*device_kinds(), *kinds_of_other_makers(), *more_kinds())
    names = sorted({kind.name for kind in kinds}, key=str.lower)
    return Markup(fragment("devices.html", names=(*MEMORY, "all", *names)))
