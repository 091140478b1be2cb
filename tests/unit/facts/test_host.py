"""The host's memory, and what a job may take of it."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.errors import MachineError
from autotune.facts import facts_from_plain
from autotune.facts.device_kinds import find_kind
from autotune.facts.host import (
    KEPT_FREE,
    HostFacts,
    cores,
    host,
    host_limit,
    memory_kills,
    memory_limits,
)
from autotune.plan.device import device_facts
from autotune.probe.survey import check_host_memory
from tests.unit.builders import GIB, make_facts, make_job

HOST = HostFacts(total_bytes=512 * GIB, free_bytes=400 * GIB)


def test_this_machine_has_memory():
    host_facts = host()
    assert 0 < host_facts.free_bytes <= host_facts.total_bytes


@pytest.mark.parametrize(
    ("kind", "host_facts", "requested", "limit"),
    [
        ("cuda", HOST, None, int(400 * GIB * (1 - KEPT_FREE))),
        ("cuda", HOST, "64GiB", 64 * GIB),
        ("cuda", None, None, None),
        ("cuda", None, "64GiB", 64 * GIB),
        ("cpu", HOST, None, None),
        ("cpu", HOST, "64GiB", 64 * GIB),
    ],
)
def test_the_limit_is_what_the_job_says_or_what_is_free(kind, host_facts, requested, limit):
    job = make_job(devices={"host_memory": requested} if requested else {})
    assert host_limit(job.devices.host_memory, kind, host_facts) == limit


def test_a_job_cannot_count_on_more_than_is_free():
    facts = replace(make_facts("cuda"), host=HOST)
    check_host_memory(make_job(devices={"host_memory": "400GiB"}), facts)
    check_host_memory(make_job(), facts)
    with pytest.raises(MachineError, match="401 GiB of the host's memory were asked for"):
        check_host_memory(make_job(devices={"host_memory": "401GiB"}), facts)


def test_facts_come_back_with_the_host_and_without():
    facts = replace(make_facts("cuda"), host=HOST)
    assert facts_from_plain(facts.plain()) == facts
    earlier = {name: value for name, value in facts.plain().items() if name != "host"}
    assert facts_from_plain(earlier).host is None


def test_of_the_machine_of_other_devices_nothing_is_known():
    facts = replace(make_facts("cpu"), host=HOST)
    assert device_facts(facts, find_kind("h100")).host is None
    assert device_facts(facts, None).host == HOST


MIB = 2**20
FIRST = "cgroup cgroup rw,memory"
SECOND = "cgroup2 cgroup2 rw,nsdelegate"


class Machine:
    """A process in groups, and what is mounted of them, in a folder."""

    def __init__(self, folder: Path, paths: str, mounts: list[tuple[str, str, str]]) -> None:
        self.process = folder / "self"
        self.process.mkdir()
        (self.process / "cgroup").write_text(paths, encoding="utf-8")
        self.places = [folder / place for _, place, _ in mounts]
        lines = [
            f"{31 + n} 23 0:{28 + n} {root} {str(folder / place).replace(' ', chr(92) + '040')} "
            f"rw,relatime shared:9 - {kind}\n"
            for n, (root, place, kind) in enumerate(mounts)
        ]
        other = "22 1 8:1 / / rw - ext4 /dev/root rw\n"
        (self.process / "mountinfo").write_text(other + "".join(lines), encoding="utf-8")

    def group(self, path: str, mount: int = 0, **files: object) -> None:
        """Files of a group; `_` stands for the first point of a name."""
        folder = self.places[mount] / path
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name.replace("_", ".", 1)).write_text(f"{text}\n", encoding="utf-8")


def first(machine: Machine, path: str, limit: int, used: int, cached: int = 0) -> None:
    names = {"memory_limit_in_bytes": limit, "memory_usage_in_bytes": used}
    machine.group(path, **names, memory_stat=f"inactive_file 7\ntotal_inactive_file {cached}")


def second(machine: Machine, path: str, limit: object, used: int, **more: object) -> None:
    stat = f"anon 5\ninactive_file {more.pop('cached', 0)}"
    machine.group(path, memory_max=limit, memory_current=used, memory_stat=stat, **more)


def test_the_second_version_counts_with_every_group_above(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/slurm/job 7/step\n", [("/", "sys fs", SECOND)])
    second(machine, "slurm/job 7/step", "max", 10)
    second(machine, "slurm/job 7", 300 * MIB, 200 * MIB, cached=50 * MIB, memory_high=250 * MIB)
    second(machine, "slurm", 900 * MIB, 400 * MIB)
    found = list(memory_limits(machine.process))
    assert found == [
        (300 * MIB, 150 * MIB),
        (250 * MIB, 150 * MIB),
        (900 * MIB, 400 * MIB),
    ]


def test_the_first_version_has_a_path_of_its_own(tmp_path: Path) -> None:
    paths = "5:cpu,cpuacct:/other\n4:memory:/system.slice/unit\n0::/\n"
    machine = Machine(tmp_path, paths, [("/", "memory", FIRST)])
    first(machine, "system.slice/unit", 300 * MIB, 200 * MIB, cached=50 * MIB)
    first(machine, "system.slice", 2**63 - 4096, 210 * MIB)
    first(machine, "other", 1, 1)
    assert min(memory_limits(machine.process)) == (300 * MIB, 150 * MIB)


@pytest.mark.parametrize("path", ["/docker/ab", "/docker/ab/inner", "/../../elsewhere"])
def test_in_a_container_the_path_begins_above_what_is_mounted(tmp_path: Path, path: str) -> None:
    machine = Machine(tmp_path, f"4:memory:{path}\n", [("/docker/ab", "memory", FIRST)])
    first(machine, "", 300 * MIB, 200 * MIB)
    first(machine, "inner", 100 * MIB, 20 * MIB)
    inner = path.endswith("inner")
    assert min(memory_limits(machine.process))[0] == (100 if inner else 300) * MIB


def test_a_quota_of_processor_time_bounds_the_cores(tmp_path: Path) -> None:
    allowed = len(os.sched_getaffinity(0))
    machine = Machine(tmp_path, "0::/pod/box\n", [("/", "fs", SECOND)])
    machine.group("pod/box", cpu_max="max 100000")
    assert cores(machine.process) == allowed
    machine.group("pod", cpu_max="150000 100000")
    assert cores(machine.process) == 1
    machine.group("pod", cpu_max=f"{10**9} 100000")
    assert cores(machine.process) == allowed
    (tmp_path / "old").mkdir()
    kind = "cgroup cgroup rw,cpu,cpuacct"
    old = Machine(tmp_path / "old", "5:cpu,cpuacct:/a\n", [("/", "cpu", kind)])
    old.group("a", **{"cpu_cfs_quota_us": -1, "cpu_cfs_period_us": 100000})
    assert cores(old.process) == allowed
    old.group("a", **{"cpu_cfs_quota_us": 50000, "cpu_cfs_period_us": 100000})
    assert cores(old.process) == 1


def test_what_the_kernel_killed_is_counted_in_the_group(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "0::/a\n", [("/", "fs", SECOND)])
    machine.group("a", memory_events="low 0\noom 3\noom_kill 2\noom_group_kill 0")
    assert memory_kills(machine.process) == 2
    (tmp_path / "old").mkdir()
    old = Machine(tmp_path / "old", "4:memory:/a\n", [("/", "memory", FIRST)])
    old.group("a", memory_oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 4")
    assert memory_kills(old.process) == 4


def test_where_nothing_is_mounted_nothing_is_limited(tmp_path: Path) -> None:
    assert list(memory_limits(tmp_path)) == []
    assert cores(tmp_path) == len(os.sched_getaffinity(0))
    assert memory_kills(tmp_path) == memory_kills(tmp_path) >= 0
