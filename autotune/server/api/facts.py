"""What the service knows: devices, methods, built-in models, its workers, its health; and whether
files of a launch that came as text agree."""

import json
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from fastapi import APIRouter, Request, Response

from autotune import __version__
from autotune.bundle.check.asking import Checked, check_launch, rules_alone
from autotune.bundle.check.read import read_launch
from autotune.errors import UserError, nearest, user_error
from autotune.facts.device_kinds import device_kinds, kinds_of_other_makers, more_kinds
from autotune.facts.known_models import known_models
from autotune.job.methods import METHODS
from autotune.server.access.callers import Caller, ServiceOf
from autotune.server.access.untrusted import MOST_TEXT, check_data, check_text, check_yaml
from autotune.server.api.problems import ProblemItem, items
from autotune.server.metrics import CONTENT_TYPE, Metrics
from autotune.server.store.values import Value, WorkerInfo
from autotune.server.submission import without_folder

router = APIRouter(tags=["facts"])
operation = APIRouter(include_in_schema=False)
ACCELERATE, DEEPSPEED = "accelerate.yaml", "deepspeed.json"
_asking = threading.Lock()


class Health(Value):
    """The state of the service."""

    status: str
    """`ok`, or `no worker`: what is asked for waits until one comes."""
    version: str
    workers: int
    queued: int
    running: int


class Device(Value):
    """A kind of GPU that can be planned for."""

    name: str
    maker: str
    memory_bytes: int
    speeds: bool
    """Whether its rates are known, so that a plan tells speeds."""


class MethodInfo(Value):
    """A training method."""

    name: str
    trainer: str
    columns: list[str]
    generates: bool


class KnownModelInfo(Value):
    """A model whose shape is built in: a plan of it needs neither a hub nor weights."""

    name: str
    hub_id: str
    parameters: int


class Files(Value):
    """The files of a launch, each as text."""

    trainer: str
    """The YAML of the training arguments."""
    accelerate: str
    """The YAML that `accelerate launch` reads."""
    deepspeed: str | None = None
    """The JSON that DeepSpeed reads."""
    method: str
    """The training method, such as `sft`."""


class Check(Value):
    """The result of a check of a launch's files."""

    agree: bool
    problems: list[ProblemItem]
    conditions: list[str]
    """Conditions on which they agree, such as a number of processes."""
    not_asked: str | None
    """The reason why the installed libraries were not asked; null: they were."""


@router.get("/health")
def get_health(service: ServiceOf) -> Health:
    """Return whether the service can take work. Needs no token."""
    counts = service.works.counts()
    workers = len(service.queue.workers())
    states = {
        state: sum(n for (_, s, _), n in counts.items() if s == state)
        for state in ("queued", "running")
    }
    status = "ok" if workers else "no worker"
    return Health(status=status, version=__version__, workers=workers, **states)


@router.get("/devices")
def list_devices(_: Caller) -> list[Device]:
    """Return the GPUs that can be planned for, by name. Other usual spellings are found, too."""
    kinds = {kind.name: kind for kind in more_kinds()}
    kinds |= {kind.name: kind for kind in (*kinds_of_other_makers(), *device_kinds())}
    return [
        Device(
            name=kind.name,
            maker=kind.maker,
            memory_bytes=kind.memory_bytes,
            speeds=any(rate is not None for rate in kind.matrix_flops_per_s.values()),
        )
        for kind in sorted(kinds.values(), key=lambda kind: kind.name.lower())
    ]


@router.get("/methods")
def list_methods(_: Caller) -> list[MethodInfo]:
    """Return the training methods."""
    return [
        MethodInfo(
            name=method.name,
            trainer=method.trainer,
            columns=list(method.columns),
            generates=method.online,
        )
        for method in METHODS.values()
    ]


@router.get("/models")
def list_models(_: Caller) -> list[KnownModelInfo]:
    """Return the models whose shape is built in."""
    return [
        KnownModelInfo(name=model.name, hub_id=model.hub_id, parameters=model.parameters)
        for model in known_models()
    ]


@router.get("/workers")
def list_workers(service: ServiceOf, _: Caller) -> list[WorkerInfo]:
    """Return the workers that reported in the last half minute."""
    return [worker for worker, _ in service.queue.workers()]


@router.post("/check")
def check_files(_: Caller, files: Files) -> Check:
    """Check whether the files of a launch agree, as `autotune check` does."""
    found = checked(files)
    return Check(
        agree=not found.problems,
        problems=items(found.problems),
        conditions=list(found.conditions),
        not_asked=found.unasked or None,
    )


@operation.get("/metrics")
def get_metrics(request: Request, _: Caller) -> Response:
    """Return the service's metrics, for Prometheus."""
    metrics: Metrics = request.app.state.metrics
    return Response(metrics.text(), media_type=CONTENT_TYPE)


def checked(files: Files) -> Checked:
    """Return where the files disagree. One check at a time asks the installed libraries, in a
    child.

    Raises:
        UserError: a file cannot be read, or names one that was not sent: nothing else on this
            machine is looked at.
    """
    method = METHODS.get(files.method)
    if method is None:
        hint = nearest(files.method, METHODS)
        raise user_error(f"there is no method `{files.method}`", where="method", hint=hint)
    trainer, accelerate = _yaml(files.trainer, "trainer"), _yaml(files.accelerate, "accelerate")
    if files.deepspeed is None:
        _refuse_named(trainer, accelerate)
    else:
        _check_json(files.deepspeed)
    with tempfile.TemporaryDirectory(prefix="autotune-check-") as scratch:
        folder = Path(scratch)
        (folder / method.config_file).write_text(files.trainer, encoding="utf-8")
        (folder / ACCELERATE).write_text(files.accelerate, encoding="utf-8")
        if files.deepspeed is not None:
            (folder / DEEPSPEED).write_text(files.deepspeed, encoding="utf-8")
        try:
            launch = read_launch(
                folder,
                trainer=Path(method.config_file),
                accelerate=Path(ACCELERATE),
                deepspeed=None if files.deepspeed is None else Path(DEEPSPEED),
                method=method.name,
            )
        except UserError as error:
            raise UserError(
                *(without_folder(problem, scratch) for problem in error.problems)
            ) from None
        if not _asking.acquire(blocking=False):
            return rules_alone(launch, "another check is asking them")
        try:
            return check_launch(launch)
        finally:
            _asking.release()


def _yaml(text: str, where: str) -> Mapping[str, Any]:
    """Return the content of a file, as the check will read it.

    Raises:
        UserError: it is too large or not plain, or no YAML.
    """
    check_yaml(text, where)
    try:
        data = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, LookupError) as error:
        reason = str(error).splitlines() or [type(error).__name__]
        raise user_error(f"cannot be read: {reason[0]}", where=where) from None
    check_data(data, where)
    return data if isinstance(data, Mapping) else {}


def _check_json(text: str) -> None:
    check_text(text, "deepspeed", MOST_TEXT)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise user_error(f"cannot be read: {error}", where="deepspeed") from None
    check_data(data, "deepspeed")


def _refuse_named(trainer: Mapping[str, Any], accelerate: Mapping[str, Any]) -> None:
    section = accelerate.get("deepspeed_config")
    named: Any = section.get("deepspeed_config_file") if isinstance(section, Mapping) else None
    named = named or trainer.get("deepspeed")
    if isinstance(named, str):
        hint = "send its text as `deepspeed`"
        raise user_error(f"DeepSpeed's file {named} was not sent", where="deepspeed", hint=hint)
