"""How a run comes to its engine; Ray is imported for who asks for it, and for no other."""

import contextlib
import importlib.util
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from autotune.engine.call import Engine
from autotune.engine.local import LocalEngine
from autotune.errors import machine_error, user_error
from autotune.job.job import Job
from autotune.process.child_server import ChildServer
from autotune.process.run_folder import RunFolder

SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
START_SETTINGS = {
    "RAY_AUTH_MODE": "token",
    "RAY_memory_monitor_refresh_ms": "0",
    "RAY_worker_niceness": "0",
}
"""Settings of a Ray that is started here: whoever reaches it needs a token; its monitor of memory,
which sees actors and no probes, ends nothing; and probes do not stand back for others."""


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Options of a run for its engine.

    Attributes:
        name: `local` or `ray`.
        address: of a cluster's head, HOST:PORT; None: a Ray of this run's own.
        at_once: None: two on Ray, one where each is over several machines, and here
            (benchmarks/scale).
        insecure: whether a cluster may answer without a token.
    """

    name: str = "local"
    address: str | None = None
    at_once: int | None = None
    insecure: bool = False

    @property
    def flags(self) -> list[str]:
        """The flags of a command for these options."""
        flags = {"--engine": self.name, "--address": self.address, "--at-once": self.at_once}
        values = [str(part) for pair in flags.items() if pair[1] is not None for part in pair]
        return [*values, "--insecure"] if self.insecure else values

    def refuse_impossible(self) -> None:
        """Refuse at once what no job can have.

        Raises:
            UserError: Ray is not installed, or several at once are asked of this machine alone.
        """
        if self.name == "local" and (self.at_once or 1) > 1:
            what = "probes on the same devices disturb each other"
            raise user_error(what, where="--at-once", hint="--engine ray gives each its own")
        if self.name == "ray" and importlib.util.find_spec("ray") is None:
            hint = "pip install 'autotune-finetune[ray]'"
            raise user_error("Ray is not installed", where="--engine ray", hint=hint)


def devices_on_ray(options: EngineOptions, log: Path) -> tuple[str, list[int]]:
    """Return the kind of a cluster's devices, GPUs where it has any, and their number on each
    living node that has some.

    Raises:
        UserError: Ray is not installed, or the cluster is not safe.
        MachineError: the cluster cannot be reached, or has no devices.
    """
    with _joined(options, log):
        import ray

        living = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    for kind, name in (("cuda", "GPU"), ("cpu", "CPU")):
        if counts := [int(there[name]) for there in living if there.get(name)]:
            return kind, counts
    raise machine_error("no node of the Ray cluster has devices", where="--address")


@contextlib.contextmanager
def engine_of(
    options: EngineOptions, job: Job, run: RunFolder, study: str, server: ChildServer
) -> Iterator[Engine]:
    """Open the engine of a run, and close it in the end.

    Args:
        study: the name of the run's study, by which its lanes are found again.
        server: of this machine.

    Raises:
        UserError: Ray is not installed, the cluster is not safe, or several at once are asked of
            this machine alone.
        MachineError: the cluster cannot be reached, or has not what the job wants.
    """
    options.refuse_impossible()
    if options.name == "local":
        yield LocalEngine(server, options.at_once or 1)
        return
    with _joined(options, run.log) as address:
        from autotune.engine.cluster import Pool, nodes_of, of_one_kind
        from autotune.engine.ray_engine import RayEngine

        span = job.devices.nodes
        nodes = of_one_kind(nodes_of(job, run.path), span)
        device = nodes[0].device
        count = 1 + len(device.peers)
        pool = Pool(nodes=nodes, kind=device.kind, count=count, address=address, span=span)
        at_once = options.at_once or (2 if span == 1 else 1)
        engine = RayEngine(study, run.path, pool, at_once)
        try:
            yield engine
        finally:
            engine.close()


@contextlib.contextmanager
def _joined(options: EngineOptions, log: Path) -> Iterator[str]:
    """Connect this process to a cluster for a while; yield the address of its head."""
    before = {name: os.environ.get(name) for name in SETTINGS | START_SETTINGS}
    os.environ.update(SETTINGS | (START_SETTINGS if options.address is None else {}))
    try:
        import ray
    except ImportError as error:
        raise machine_error(f"Ray cannot be imported: {error}", where="--engine ray") from None
    from autotune.engine.cluster import join

    try:
        yield join(options.address, insecure=options.insecure, log=log)
    finally:
        ray.shutdown()
        for name, value in before.items():
            os.environ.pop(name, None)
            os.environ |= {} if value is None else {name: value}
