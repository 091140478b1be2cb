"""What happens to probes on Ray when nodes, actors, drivers and heads are really killed."""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from ray_nodes import Nodes, a_probe, lanes, nodes
from staging import STUBS_PATH, still_running

from autotune.engine.call import Ended
from autotune.errors import MachineError, UserError
from autotune.probe.protocol import Measurement

SOON_S = 60.0
NIGHTLY = pytest.mark.nightly("engine")


@pytest.fixture
def two(cluster: Nodes) -> Iterator[tuple[int, int]]:
    """Two more nodes, which a test may kill."""
    numbers = (2, 3)
    for number in numbers:
        cluster.start(number)
    yield numbers
    for number in numbers:
        if number in cluster.started:
            cluster.kill(number)


@contextlib.contextmanager
def opened(cluster: Nodes, folder: Path, at_once: int = 1, **options: Any) -> Iterator[Any]:
    engine = lanes(cluster, folder, at_once, **{"on": (2, 3), **options})
    try:
        yield engine
    finally:
        engine.close()


def hear(engine: Any, until: Callable[[list[Any]], bool]) -> list[Any]:
    """Everything that is heard until something is true of it."""
    news: list[Any] = []
    deadline = time.monotonic() + SOON_S
    while not until(news):
        assert time.monotonic() < deadline, news
        news += engine.news(1.0)
    return news


def wait_for(what: Callable[[], bool], seconds: float = SOON_S) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def ticked(news: list[Any]) -> bool:
    return any(isinstance(event, dict) and event.get("event") == "tick" for _, event in news)


def ended(news: list[Any]) -> bool:
    return any(isinstance(event, Ended) for _, event in news)


def measured(engine: Any) -> Measurement:
    news = hear(engine, ended)
    return next(event for _, event in news if isinstance(event, Ended)).measurement()


def pids(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "pids").read_text(encoding="ascii").split()]


def processes_of_lane(folder: Path) -> dict[str, int]:
    """A probe's child, the fork server above it, and the actor above that."""
    child = pids(folder)[-1]
    server = psutil.Process(child).ppid()
    return {"child": child, "server": server, "actor": psutil.Process(server).ppid()}


@pytest.mark.usefixtures("two")
def test_a_probe_whose_node_is_killed_is_made_once_more_elsewhere(
    cluster: Nodes, tmp_path: Path
) -> None:
    with opened(cluster, tmp_path) as engine:
        engine.begin(a_probe(tmp_path, "0000"))
        hear(engine, ticked)
        of_lane = processes_of_lane(tmp_path / "0000")
        cluster.kill(cluster.of(of_lane["child"]))
        found = measured(engine)
        assert found.outcome == "ok" and found.node is not None
        assert found.reason.startswith("fine; tried again, as at first what ran it on ")
        assert found.node not in found.reason
        assert still_running(list(of_lane.values())) == []
        assert (tmp_path / "0000-again" / "measurement.json").exists()


@NIGHTLY
@pytest.mark.usefixtures("two")
def test_killed_twice_it_is_a_crash_and_the_next_probe_goes_on(
    cluster: Nodes, tmp_path: Path
) -> None:
    (tmp_path / "never").touch()
    with opened(cluster, tmp_path) as engine:
        engine.begin(a_probe(tmp_path, "0000"))
        for folder in ("0000", "0000-again"):
            hear(engine, ticked)
            os.kill(processes_of_lane(tmp_path / folder)["actor"], signal.SIGKILL)
        found = measured(engine)
        assert found.outcome == "crash" and found.reason.endswith("ends it each time")
        (tmp_path / "0001").mkdir()
        (tmp_path / "0001" / "go").touch()
        engine.begin(a_probe(tmp_path, "0001"))
        assert measured(engine).outcome == "ok"


@NIGHTLY
@pytest.mark.usefixtures("two")
def test_a_killed_actor_leaves_no_fork_server(cluster: Nodes, tmp_path: Path) -> None:
    with opened(cluster, tmp_path) as engine:
        engine.begin(a_probe(tmp_path, "0000"))
        hear(engine, ticked)
        of_lane = processes_of_lane(tmp_path / "0000")
        os.kill(of_lane["actor"], signal.SIGKILL)
        assert measured(engine).outcome == "ok"
        assert still_running(list(of_lane.values())) == []


@NIGHTLY
@pytest.mark.usefixtures("two")
def test_a_node_that_is_silent_for_a_while_is_not_dead(cluster: Nodes, tmp_path: Path) -> None:
    with opened(cluster, tmp_path) as engine:
        engine.begin(a_probe(tmp_path, "0000"))
        hear(engine, ticked)
        child = pids(tmp_path / "0000")[0]
        silent = [one for one in cluster.processes(cluster.of(child)) if one.pid != child]
        for process in silent:
            process.suspend()
        (tmp_path / "0000" / "go").touch()
        time.sleep(2.0)
        for process in silent:
            process.resume()
        assert measured(engine).reason == "fine"
        assert len(pids(tmp_path / "0000")) == 1


@NIGHTLY
def test_where_no_place_is_left_it_waits_and_says_what_is_asked(
    cluster: Nodes, tmp_path: Path
) -> None:
    cluster.start(2)
    with opened(cluster, tmp_path, on=(2,), place_s=8.0) as engine:
        engine.begin(a_probe(tmp_path, "0000"))
        hear(engine, ticked)
        cluster.kill(2)
        news = hear(engine, lambda news: any(event.get("holder") for _, event in news))
        holder = news[-1][1]["holder"]
        assert holder.startswith("no node has room: CPU 1 asked, on ") and "(lost)" in holder
        with pytest.raises(MachineError, match="no node has room"):
            hear(engine, ended)


@pytest.mark.usefixtures("two")
def test_two_at_once_are_on_two_nodes_and_a_stopped_one_ends_at_once(
    cluster: Nodes, tmp_path: Path
) -> None:
    with opened(cluster, tmp_path, at_once=2) as engine:
        for key in ("0000", "0001"):
            engine.begin(a_probe(tmp_path, key))
        hear(engine, lambda news: len({key for key, _ in news}) == 2)
        nodes_of = {cluster.of(pids(tmp_path / key)[0]) for key in ("0000", "0001")}
        assert nodes_of == {2, 3} and engine.free_places() == 0
        began = time.monotonic()
        engine.stop("0000", "it cannot win any more")
        found = measured(engine)
        assert time.monotonic() - began < 3.0
        assert (found.outcome, found.reason) == ("stopped", "it cannot win any more")
        (tmp_path / "0001" / "go").touch()
        assert measured(engine).outcome == "ok"


@pytest.mark.usefixtures("two")
def test_what_nobody_asks_for_removes_itself(cluster: Nodes, tmp_path: Path) -> None:
    import ray

    engine = lanes(cluster, tmp_path, 1, on=(2, 3), abandoned_s=3.0)
    engine.begin(a_probe(tmp_path, "0000"))
    hear(engine, ticked)
    of_lane = processes_of_lane(tmp_path / "0000")
    time.sleep(6.0)
    assert still_running(list(of_lane.values()), within_s=0.0) != []  # whoever works asks
    engine.gone.set()
    time.sleep(6.0)
    assert still_running(list(of_lane.values()), within_s=10.0) == []
    names = [one["name"] for one in ray.util.list_named_actors(all_namespaces=True)]
    assert not [name for name in names if name.startswith(engine.run)]
    groups = ray.util.placement_group_table().values()
    states = [group["state"] for group in groups if group["name"].startswith(engine.run)]
    assert states == ["REMOVED"]


# -- drivers


@contextlib.contextmanager
def driver(
    cluster: Nodes, run: str, folder: Path, span: int = 1
) -> Iterator["subprocess.Popen[str]"]:
    """Another process that begins a probe."""
    command = [sys.executable, str(Path(__file__).with_name("ray_driver.py"))]
    process = subprocess.Popen(
        [*command, cluster.address, run, str(folder), str(span)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **cluster.variables, "PYTHONPATH": STUBS_PATH},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def read_until(process: "subprocess.Popen[str]", text: str) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if text in line:
            return line
    raise AssertionError(f"it ended without `{text}`")


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize("span", [1, 2])
def test_a_driver_that_comes_back_hears_all_of_what_is_in_flight(
    cluster: Nodes, tmp_path: Path, span: int
) -> None:
    run = f"back-{secrets.token_hex(3)}"
    folders = [tmp_path / "0000", tmp_path / "0000" / "node-1"][:span]
    with driver(cluster, run, tmp_path, span) as process:
        read_until(process, "tick")
        wait_for(lambda: all((folder / "pids").exists() for folder in folders))
        process.kill()
    for folder in folders:
        (folder / "go").touch()
    with opened(cluster, tmp_path, run=run, span=span) as engine:
        assert [call.key for call in engine.in_flight()] == ["0000"]
        news = hear(engine, ended)
        assert next(event for _, event in news)["number"] == 0
        found = news[-1][1].measurement()
        assert found.outcome == "ok" and len((found.node or "").split(", ")) == span
        assert [len(pids(folder)) for folder in folders] == [1] * span


@pytest.mark.usefixtures("two")
def test_ctrl_c_ends_a_probe_in_less_than_a_second(cluster: Nodes, tmp_path: Path) -> None:
    with driver(cluster, f"ends-{secrets.token_hex(3)}", tmp_path) as process:
        read_until(process, "tick")
        of_lane = processes_of_lane(tmp_path / "0000")
        began = time.time()
        process.send_signal(signal.SIGINT)
        line = read_until(process, "interrupted")
        assert float(line.split()[1]) - began < 1.0
        assert still_running(list(of_lane.values())) == []


@NIGHTLY
def test_a_killed_head_is_named_by_its_address(tmp_path: Path) -> None:
    with nodes(1) as own, driver(own, f"head-{secrets.token_hex(3)}", tmp_path) as process:
        read_until(process, "tick")
        began = time.monotonic()
        own.kill(0)
        line = read_until(process, "does not answer")
        assert own.address in line
        assert process.wait(timeout=60) == 3
        assert time.monotonic() - began < SOON_S


# -- what a cluster has to be


@NIGHTLY
def test_versions_that_differ_are_a_table_and_no_probe(cluster: Nodes, tmp_path: Path) -> None:
    info = tmp_path / "site" / "trl-9.9.9.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: trl\nVersion: 9.9.9\n")
    path = os.pathsep.join([str(tmp_path / "site"), STUBS_PATH])
    cluster.start(2, PYTHONPATH=path)
    try:
        with pytest.raises(MachineError, match=r"package .*trl .*9\.9\.9"):
            lanes(cluster, tmp_path, 1)
    finally:
        cluster.kill(2)


@NIGHTLY
def test_a_cluster_that_asks_for_no_token_is_refused(cluster: Nodes, tmp_path: Path) -> None:
    import ray

    from autotune.engine.cluster import is_loopback, is_open, join

    log = tmp_path / "log"
    assert is_open(cluster.address, log) is False
    unguarded = Nodes(guarded=False)
    try:
        unguarded.start(0)
        assert is_open(unguarded.address, log) is True
        reached = f"{ray.util.get_node_ip_address()}:{unguarded.port}"
        assert not is_loopback(reached) and is_loopback(unguarded.address)
        with pytest.raises(UserError, match="--insecure"):
            join(reached, insecure=False, log=log)
    finally:
        unguarded.close()
    with pytest.raises(UserError, match="HOST:PORT"):
        join("ray://10.0.0.1:10001", insecure=False, log=log)
    with pytest.raises(MachineError, match="does not answer"):
        join("127.0.0.1:1", insecure=False, log=log)
