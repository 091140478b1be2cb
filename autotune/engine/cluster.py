"""A Ray cluster: joined or started, its nodes, and what has to be the same on all of them.

It is imported by `opening.py` alone, which sets what Ray reads when it is imported.
"""

import contextlib
import dataclasses
import ipaddress
import logging
import os
import platform
import secrets
import signal
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from autotune.engine import tokenless
from autotune.errors import AutotuneError, machine_error, user_error
from autotune.facts.devices import DeviceFacts
from autotune.facts.stack import LIBRARIES, version
from autotune.job.job import Job
from autotune.probe.survey import Machine, machine_here
from autotune.process.companion import Companion
from autotune.process.files import private_opener
from autotune.process.messages import Message

NAMESPACE = "autotune"
STORE_BYTES = 80_000_000
"""Ray's least; nothing of ours is in its store."""
REACH_S = 5.0
LOOK_S, TRIES, OPEN_S = 120.0, 5, 60.0


@dataclass(frozen=True, kw_only=True)
class Node(Message):
    """A living node that has devices.

    Attributes:
        versions: of Python, Ray and the stack.
        machine: its devices, as many as a job wants; None: it cannot have them, see `problem`.
        has_folder: whether it sees the folder of the run.
        name: tells it from the others.
        resources: of Ray's, in all.
    """

    versions: Mapping[str, str]
    machine: Machine | None
    problem: str
    has_folder: bool
    id: str = ""
    name: str = ""
    resources: Mapping[str, float] = field(default_factory=dict)

    @property
    def device(self) -> DeviceFacts:
        """Its devices, as many as the job wants."""
        assert self.machine is not None, self.problem
        return self.machine.device


@dataclass(frozen=True, kw_only=True)
class Pool:
    """The nodes that lanes may be on.

    Attributes:
        nodes: of one kind.
        kind, count: of a lane's devices on each of its nodes.
        address: of the head.
        span: the nodes of a lane.
    """

    nodes: Sequence[Node]
    kind: str
    count: int
    address: str
    span: int = 1

    @property
    def bundle(self) -> dict[str, float]:
        """The resources of a lane on a node: its devices, and its part of the cores of the smallest
        node; on CPUs all of them, as probes that share cores disturb each other."""
        cores = [node.resources.get("CPU", 0.0) for node in self.nodes]
        if self.kind == "cpu":
            return {"CPU": min(cores)}
        gpus = [node.resources["GPU"] for node in self.nodes]
        share = min(self.count * c // g for c, g in zip(cores, gpus, strict=True))
        return {"GPU": float(self.count)} | ({"CPU": share} if share else {})

    def living(self) -> list[Node]:
        """Return its nodes that are there now."""
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        return [node for node in self.nodes if node.id in alive]

    def asked_and_there(self) -> str:
        """Return what a lane asks for and what the cluster has, in words."""
        alive = self.living()
        there = [
            f"{node.name} ({_words(node.resources)})" if node in alive else f"{node.name} (lost)"
            for node in self.nodes
        ]
        free = _words(ray.available_resources())
        each = f" on each of {self.span} nodes" if self.span > 1 else ""
        asked = _words(self.bundle) + each
        return f"no node has room: {asked} asked, on {', '.join(there)}; free in all: {free}"


def _words(resources: Any) -> str:
    shown = [f"{name} {resources.get(name, 0.0):g}" for name in ("GPU", "CPU") if name in resources]
    return ", ".join(shown) or "nothing"


# -- joined or started


def join(address: str | None, *, insecure: bool, log: Path) -> str:
    """Connect this process to a cluster, and return the address of its head.

    Args:
        address: HOST:PORT; None: a Ray is started here, and ends with this process.
        insecure: whether a cluster may answer without a token.

    Raises:
        UserError: it may not, or this process has no token for it.
        MachineError: it does not answer.
    """
    options: dict[str, Any] = {"address": address}
    if address is None:
        _make_token()
        options = {"address": "local", "include_dashboard": False}
        options |= {"object_store_memory": STORE_BYTES}
    else:
        if not is_reached(address):
            raise unreachable(address)
        if (open_to_all := is_open(address, log)) is None:
            hint = "name the port of its head: `ray start` prints it (6379 unless it is given)"
            what = f"what listens at {address} does not answer as Ray {ray.__version__} does"
            raise machine_error(what, where="--address", hint=hint)
        if not open_to_all and not (os.environ.get("RAY_AUTH_MODE") == "token" and has_token()):
            raise wants_token(address)
        if open_to_all and not insecure and not is_loopback(address):
            raise user_error(
                f"the Ray cluster at {address} asks for no token: whoever reaches it runs code",
                hint="start its nodes with RAY_AUTH_MODE=token; where no other can reach it, "
                "--insecure takes it as it is",
            )
    ray._raylet.Config.initialize("")  # it may have been imported before its settings were made
    ends = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR, **options)
    except Exception as error:  # Ray raises plain ones where a part of it does not start
        if address is not None and is_open(address, log) is False:
            raise wants_token(address) from None
        what = f"Ray does not start: {error}" if address is None else f"{address}: {error}"
        raise machine_error(what[:1500], where="--engine ray") from None
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, ends)  # Ray puts its own there
    # It tells of dead nodes on standard output, which is for what a command answers.
    ray._private.worker.print_to_stdstream = lambda data, ignore_prefix: None
    return str(ray.get_runtime_context().gcs_address)


def is_reached(address: str) -> bool:
    """True if something listens at HOST:PORT.

    Raises:
        UserError: it is no such address.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        hint = "such as 10.0.0.1:6379, by which the nodes know the head"
        raise user_error(f"`{address}` is not HOST:PORT", where="--address", hint=hint)
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_S).close()
    except OSError:
        return False
    return True


def is_loopback(address: str) -> bool:
    """True if no other machine can reach HOST:PORT."""
    host = address.rpartition(":")[0].strip("[]")
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def unreachable(address: str) -> AutotuneError:
    """Return the error for a cluster whose head does not answer."""
    hint = "see that its head runs; what was measured is kept, and `--resume` goes on"
    return machine_error(f"the Ray cluster at {address} does not answer", hint=hint)


def wants_token(address: str) -> AutotuneError:
    """Return the error for a cluster that is asked without its token."""
    hint = "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH to a file with its token"
    return user_error(f"the Ray cluster at {address} wants its token", hint=hint)


def has_token() -> bool:
    """True if this process has a token, where Ray looks for it."""
    named = os.environ.keys() & {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}
    return bool(named) or _token_file().exists()


def _token_file() -> Path:
    return Path.home() / ".ray" / "auth_token"


def _make_token() -> None:
    """Make the token of a user who has none."""
    if has_token():
        return
    file = _token_file()
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    made = file.with_name(f"auth_token-{secrets.token_hex(4)}")
    with open(made, "w", encoding="ascii", opener=private_opener) as written:
        written.write(secrets.token_hex(32))
    try:
        os.link(made, file)
    except FileExistsError:  # another run has just made it
        pass
    except OSError:  # a disk without hard links
        made.replace(file)
    made.unlink(missing_ok=True)


def is_open(address: str, log: Path) -> bool | None:
    """True if a cluster answers without a token; None where what listens there is no Ray."""
    companion = Companion(tokenless.__name__, [address], log=log)
    try:
        until = time.monotonic() + OPEN_S
        while companion.exit_code is None and time.monotonic() < until:
            time.sleep(0.05)
        return {tokenless.OPEN: True, tokenless.GUARDED: False}.get(companion.exit_code or 0)
    finally:
        companion.close()


# -- its nodes


def nodes_of(job: Job, folder: Path) -> list[Node]:
    """Return the living nodes that have what a job wants in kind; of each what it says of itself.

    Args:
        folder: of the run.
    """
    living = [node for node in ray.nodes() if node["Alive"]]
    gpus = [node for node in living if node["Resources"].get("GPU")]
    wants_cpu = job.devices.kind == "cpu" or (job.devices.kind == "auto" and not gpus)
    asked = [n for n in living if n["Resources"].get("CPU")] if wants_cpu else gpus
    wanted = job.devices.model_copy(update={"kind": "cpu" if wants_cpu else "cuda", "index": 0})
    text = job.model_copy(update={"devices": wanted}).model_dump_json()
    answers = _looks([node["NodeID"] for node in asked], text, str(folder))
    names = [node["NodeManagerHostname"] for node in asked]
    return [
        dataclasses.replace(
            Node.from_plain(answers[node["NodeID"]]),
            id=node["NodeID"],
            name=name if names.count(name) == 1 else f"{name}-{node['NodeID'][:6]}",
            resources=node["Resources"],
        )
        for node, name in zip(asked, names, strict=True)
        if node["NodeID"] in answers
    ]


def _looks(ids: Sequence[str], job: str, folder: str) -> dict[str, dict[str, Any]]:
    """Return nodes by their ids as plain data, one that fails to answer with the reason; those
    that die meanwhile are left out."""
    look = ray.remote(num_cpus=0, max_retries=0)(look_here)
    answers: dict[str, dict[str, Any]] = {}
    silent: dict[str, str] = {}
    left = set(ids)
    for _ in range(TRIES):  # a node that has just come is not known to all yet
        places = {node: NodeAffinitySchedulingStrategy(node, soft=False) for node in left}
        polls = {
            node: look.options(scheduling_strategy=place).remote(job, folder)
            for node, place in places.items()
        }
        for node, poll in polls.items():
            try:
                answers[node] = ray.get(poll, timeout=LOOK_S)
            except RayError as error:
                silent[node] = f"{error}".strip().rpartition("\n")[2]
        left &= {node["NodeID"] for node in ray.nodes() if node["Alive"]} - answers.keys()
        if not left:
            break
        time.sleep(1.0)
    for node in left & silent.keys():
        unfit = Node(machine=None, problem=silent[node], has_folder=False, versions={})
        answers[node] = unfit.plain()
    return answers


def look_here(job: str, folder: str) -> dict[str, Any]:
    """Return, as plain data, what this node is; called on it."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":  # as Ray hides GPUs from who asks for none
        del os.environ["CUDA_VISIBLE_DEVICES"]
    machine, problem, sees = None, "", Path(folder).is_dir()
    try:
        machine = machine_here(Job.model_validate_json(job))
    except AutotuneError as error:
        problem = str(error)
    versions = versions_here()
    return Node(machine=machine, problem=problem, has_folder=sees, versions=versions).plain()


def versions_here() -> dict[str, str]:
    """Return the versions that have to be the same on all nodes, and where the driver is."""
    stack = {name: version(name) or "none" for name in LIBRARIES}
    return {"python": platform.python_version(), "ray": ray.__version__, **stack}


def of_one_kind(nodes: Sequence[Node], span: int = 1) -> list[Node]:
    """Return the nodes of the kind that there is most of, with as many devices as a job wants.

    Args:
        span: the nodes of one candidate.

    Raises:
        MachineError: there are too few, they differ in versions, or do not see the run's folder.
    """
    kinds: dict[str, list[Node]] = {}
    for node in nodes:
        if node.machine is not None:
            kinds.setdefault(node.device.name, []).append(node)
    if not kinds:
        said = "; ".join(f"{node.name}: {node.problem}" for node in nodes) or "no node has any"
        raise machine_error(f"no node of the Ray cluster has the devices of the job: {said}")
    most = max(map(len, kinds.values()))
    if most < span:
        what = f"the job is over {span} machines, and the Ray cluster has {most} of a kind for it"
        raise machine_error(what, where="devices.nodes", hint="start Ray on more, or set fewer")
    kinds = {kind: alike for kind, alike in kinds.items() if len(alike) >= span}
    chosen = kinds[max(sorted(kinds), key=lambda kind: _devices(kinds[kind]))]
    refuse_differences(chosen)
    if blind := [node.name for node in chosen if not node.has_folder]:
        what = f"{', '.join(blind)} cannot see the folder of the run"
        raise machine_error(what, hint="name one on a disk that all nodes share: --out FOLDER")
    return chosen


def _devices(nodes: Sequence[Node]) -> float:
    return sum(node.resources.get("GPU") or node.resources.get("CPU") or 0.0 for node in nodes)


def refuse_differences(nodes: Sequence[Node]) -> None:
    """Refuse nodes with other versions than each other's or the driver's, which makes estimates.

    Raises:
        MachineError: there are some; it has the table.
    """
    columns = {"here": versions_here(), **{node.name: dict(node.versions) for node in nodes}}
    rows = [["package", *columns]]
    for package in versions_here():
        found = [versions.get(package, "none") for versions in columns.values()]
        if len(set(found)) > 1:
            rows.append([package, *found])
    if len(rows) > 1:
        table = " | ".join("  ".join(row) for row in rows)
        what = f"versions differ, and probes of different versions are not compared: {table}"
        raise machine_error(what, hint="install the same on all nodes")
