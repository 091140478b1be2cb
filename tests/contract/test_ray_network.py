"""Nodes of Ray whose cable is really cut: each in a network namespace of its own, on a bridge."""

import os
import secrets
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from ray_nodes import Nodes
from staging import still_running
from test_ray_faults import driver, pids, processes_of_lane, read_until

pytestmark = [
    pytest.mark.nightly("engine"),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces are root's"),
]


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Cabled(Nodes):
    """Nodes that reach each other by one cable each."""

    net = f"10.{os.getpid() % 200 + 20}.7"

    def __init__(self) -> None:
        super().__init__()
        self._name = f"t{os.getpid()}"
        ip("link", "add", self._name, "type", "bridge")
        ip("addr", "add", f"{self.net}.1/24", "dev", self._name)
        ip("link", "set", self._name, "up")

    def inside(self, number: int) -> Sequence[str]:
        if number == 0:
            return ()
        space, cable = f"{self._name}n{number}", f"{self._name}c{number}"
        ip("netns", "add", space)
        ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", space)
        ip("link", "set", cable, "master", self._name, "up")
        ip("-n", space, "addr", "add", f"{self.net}.{number + 1}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            ip("-n", space, "link", "set", device, "up")
        return ("ip", "netns", "exec", space)

    def cut(self, number: int) -> None:
        ip("link", "set", f"{self._name}c{number}", "down")

    def plug(self, number: int) -> None:
        ip("link", "set", f"{self._name}c{number}", "up")

    def close(self) -> None:
        numbers = [number for number in self.started if number]
        super().close()
        for number in numbers:
            ip("netns", "del", f"{self._name}n{number}")
        ip("link", "del", self._name)


@pytest.fixture(scope="module")
def cabled() -> Iterator[Cabled]:
    cluster = Cabled()
    try:
        for number in range(4):
            cluster.start(number)
        yield cluster
    finally:
        cluster.close()


def test_a_cable_that_is_out_for_a_moment_loses_nothing(cabled: Cabled, tmp_path: Path) -> None:
    with driver(cabled, f"out-{secrets.token_hex(3)}", tmp_path) as process:
        read_until(process, "tick")
        cut = cabled.of(pids(tmp_path / "0000")[0])
        cabled.cut(cut)
        (tmp_path / "0000" / "go").touch()
        time.sleep(2.0)
        cabled.plug(cut)
        assert read_until(process, "ended") == "ended fine\n"
        assert len(pids(tmp_path / "0000")) == 1


def test_a_node_that_is_cut_off_is_lost_and_measures_nothing_twice(
    cabled: Cabled, tmp_path: Path
) -> None:
    with driver(cabled, f"cut-{secrets.token_hex(3)}", tmp_path) as process:
        read_until(process, "tick")
        of_lane = processes_of_lane(tmp_path / "0000")
        cut = cabled.of(of_lane["child"])
        cabled.cut(cut)
        reason = read_until(process, "ended")
        assert reason.startswith("ended fine; tried again, as at first what ran it on ")
        assert still_running([of_lane["child"]]) == [of_lane["child"]]  # nobody could end it
        cabled.plug(cut)
        assert still_running(list(of_lane.values()), within_s=90.0) == []
        assert len(pids(tmp_path / "0000")) == len(pids(tmp_path / "0000-again")) == 1
