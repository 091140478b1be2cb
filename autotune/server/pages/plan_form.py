"""The page that asks for a plan."""

import functools
from typing import Annotated, Any

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import RedirectResponse, Response
from markupsafe import Markup
from starlette.concurrency import run_in_threadpool

from autotune.facts.device_kinds import device_kinds, kinds_of_other_makers
from autotune.facts.kind_names import more_kinds
from autotune.facts.known_models import known_models
from autotune.job.methods import METHODS
from autotune.server.access.callers import Caller, ServiceOf
from autotune.server.api.work import submit
from autotune.server.pages.plan_input import (
    PlanForm,
    changed_job,
    count_problems,
    device_text,
    submission_of,
)
from autotune.server.pages.render import fragment, page, redirect
from autotune.server.service import Service
from autotune.server.store.filter import Filter
from autotune.server.store.values import Details

router = APIRouter(include_in_schema=False)
MEMORY = ("8 GB", "12 GB", "16 GB", "24 GB", "32 GB", "40 GB", "48 GB", "80 GB")
EXAMPLES = (
    ("Qwen2.5 7B, LoRA in bfloat16, on 24 GB", "qwen2.5-7b", "24 GB", "lora", "bfloat16"),
    ("Llama 3.1 8B, QLoRA, on an RTX 4090", "llama-3.1-8b", "RTX 4090", "qlora", ""),
    ("Qwen2.5 0.5B, all weights, on an H100", "qwen2.5-0.5b", "H100", "full", ""),
)
_Short = Annotated[str, Query(max_length=200)]
FromWork = Annotated[str, Query(alias="from", pattern=r"^([0-9a-f]{16})?$")]


@router.get("/")
def home() -> Response:
    """The first page is that of plans."""
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
    """The form, empty, or filled from a work; with a way out of it, counted from 1, applied."""
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
        way: which of its ways out is applied, from 1 on; 0: none.
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
    """Return the same as options of a list: some hundred, made once."""
    return Markup(fragment("devices.html", names=(*MEMORY, *device_names())))


def _is_known(name: str) -> bool:
    return any(name == model.name for model in known_models())
