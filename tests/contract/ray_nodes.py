"""Real nodes of Ray on this machine, each ended by its own processes alone.

A node is `ray start --block` in a session of its own; what belongs to it is the tree under that
process. Nothing is ended by its name: others on this machine may have a Ray, too.
"""

import contextlib
import dataclasses
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
from staging import STUBS_PATH

from autotune.engine.call import Call
from autotune.engine.opening import SETTINGS, START_SETTINGS
from autotune.probe.measure import ProbeTask
from tests.unit.builders import make_job, make_probe_request

TIGHT = {
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1500",
    "RAY_health_check_failure_threshold": "4",
}
"""A node that is gone is known to be after some seconds; on a loaded machine not sooner."""
STARTED = {**SETTINGS, **START_SETTINGS, "RAY_enable_metrics_collection": "false"}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Nodes:
    """A head without devices, and nodes with one CPU each."""

    net = "127.0.0"

    def __init__(self, *, guarded: bool = True) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="rn"))  # short: sockets have long names
        token = self.folder / "token"
        token.write_text(secrets.token_hex(32), encoding="ascii")
        token.chmod(0o600)
        self.variables = {**STARTED, **TIGHT, "RAY_AUTH_TOKEN_PATH": str(token)}
        if not guarded:
            self.variables["RAY_AUTH_MODE"] = "disabled"
        self.port, self.started = free_port(), dict[int, "subprocess.Popen[bytes]"]()
        self.address = f"{self.net}.1:{self.port}"

    @classmethod
    def known(cls, address: str) -> "Nodes":
        """A cluster that another process has started; its token is in the environment."""
        nodes = cls()
        nodes.address, nodes.variables = address, {**STARTED}
        nodes.net = address.rpartition(":")[0].rpartition(".")[0]
        return nodes

    def start(self, number: int, **variables: str) -> None:
        """Start a node; 0 is the head."""
        role = [f"--address={self.address}"]
        if number == 0:
            role = ["--head", f"--port={self.port}", "--include-dashboard=false"]
            role += [f"--temp-dir={self.folder / 't'}"]
        command = [*self.inside(number), sys.executable, "-m", "ray.scripts.scripts", "start"]
        command += ["--block", *role]
        # The head has the address by which this process looks for a node of its own.
        command += [f"--node-ip-address={self.net}.{number + 1}"]
        command += [f"--num-cpus={min(number, 1)}", "--num-gpus=0"]
        command += ["--object-store-memory=80000000", "--disable-usage-stats"]
        own = {"XDG_CACHE_HOME": str(self.folder / f"cache-{number}"), "PYTHONPATH": STUBS_PATH}
        environment = {**os.environ, **self.variables, **own, **variables}
        environment.pop("AUTOTUNE_CACHE", None)
        with (self.folder / f"node-{number}.log").open("wb") as log:
            self.started[number] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        self._await(number)

    def inside(self, number: int) -> Sequence[str]:
        """What starts a command where a node is."""
        return ()

    def _await(self, number: int) -> None:
        log, deadline = self.folder / f"node-{number}.log", time.monotonic() + 90
        while "Ray runtime started" not in log.read_text(encoding="utf-8", errors="replace"):
            assert self.started[number].poll() is None, log.read_text(encoding="utf-8")
            assert time.monotonic() < deadline, log.read_text(encoding="utf-8")
            time.sleep(0.2)

    def processes(self, number: int) -> list[psutil.Process]:
        """The processes of a node that are there."""
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(self.started[number].pid)
            return [root, *root.children(recursive=True)]
        return []

    def of(self, pid: int) -> int:
        """The number of the node that a process belongs to."""
        above = {process.pid for process in psutil.Process(pid).parents()}
        return next(number for number, one in self.started.items() if one.pid in above)

    def kill(self, number: int) -> None:
        """End all of a node at once, as when its power goes."""
        for process in self.processes(number):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        self.started.pop(number).wait()

    def close(self) -> None:
        for number in sorted(self.started, reverse=True):
            self.kill(number)


@contextlib.contextmanager
def nodes(count: int) -> Iterator[Nodes]:
    """A cluster of a head and so many nodes, which this process has not joined."""
    cluster = Nodes()
    try:
        for number in range(count + 1):
            cluster.start(number)
        yield cluster
    finally:
        cluster.close()


@contextlib.contextmanager
def joined(cluster: Nodes) -> Iterator[None]:
    """This process joins a cluster, as a run does."""
    before = dict(os.environ)
    os.environ.update(cluster.variables)  # before Ray is imported, which reads them then
    import ray

    from autotune.engine.cluster import join

    try:
        join(cluster.address, insecure=False, log=cluster.folder / "join.log")
        yield
    finally:
        ray.shutdown()
        os.environ.clear()
        os.environ.update(before)


def lanes(
    cluster: Nodes,
    folder: Path,
    at_once: int,
    on: Sequence[int] = (1,),
    span: int = 1,
    **options: Any,
) -> Any:
    """An engine on some nodes, whose lanes import nothing of the stack unless that is asked for."""
    from autotune.engine.cluster import Pool, nodes_of, of_one_kind
    from autotune.engine.ray_engine import RayEngine

    folder.mkdir(parents=True, exist_ok=True)
    addresses = {f"node:{cluster.net}.{number + 1}" for number in on}
    there = of_one_kind(nodes_of(make_job(), folder))
    there = [node for node in there if addresses & node.resources.keys()]
    pool = Pool(nodes=there, kind="cpu", count=1, address=cluster.address, span=span)
    named = {"run": f"test-{secrets.token_hex(3)}", "preload": (), **options}
    return RayEngine(folder=folder, pool=pool, at_once=at_once, **named)


def a_probe(folder: Path, key: str, worker: str = "stubs:waits_once") -> Call:
    """A probe of a stub that waits to be told to go on."""
    request = dataclasses.replace(make_probe_request(), device_kind="cpu")
    task = ProbeTask(request=request, own_s=60.0, worker=worker, timed=False)
    return Call(key=key, folder=str(folder / key), request=task.plain())
