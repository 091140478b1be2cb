"""What the service knows: devices, methods, built-in models, its workers, its health."""

from fastapi import APIRouter, Request, Response

from autotune import __version__
from autotune.facts.device_kinds import device_kinds, kinds_of_other_makers, more_kinds
from autotune.facts.known_models import known_models
from autotune.job.methods import METHODS
from autotune.server.access.callers import Caller, ServiceOf
from autotune.server.metrics import CONTENT_TYPE, Metrics
from autotune.server.store.values import Value, WorkerInfo

router = APIRouter(tags=["facts"])
operation = APIRouter(include_in_schema=False)


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
    """Return the workers that reported in the last minute."""
    return service.queue.workers()


@operation.get("/metrics")
def get_metrics(request: Request, _: Caller) -> Response:
    """Return the service's metrics, for Prometheus."""
    metrics: Metrics = request.app.state.metrics
    return Response(metrics.text(), media_type=CONTENT_TYPE)
