"""Memory, cores, disks and ports, judged; and read of a machine that is real."""

import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.doctor import host_checks, host_facts
from tests.unit.doctor.machines import DISK, GIB, HOST, MIB, check_whole, states


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ["ok"]),
        ({"limit_bytes": 48 * GIB, "free_bytes": 40 * GIB}, ["ok"]),
        ({"limit_bytes": 16 * GIB, "free_bytes": 15 * GIB}, ["warn"]),
        ({"free_bytes": 2 * GIB}, ["warn"]),
        ({"memory_kills": 2}, ["ok", "warn"]),
    ],
)
def test_memory(fields, expected):
    assert states(host_checks.check_memory(replace(HOST, **fields))) == expected


def test_a_limit_is_told_beside_the_machines_memory():
    bounded = replace(HOST, limit_bytes=16 * GIB, free_bytes=15 * GIB)
    (finding,) = host_checks.check_memory(bounded)
    assert finding.found == "15 GiB of 16 GiB free; a control group allows that much of 64 GiB"


@pytest.mark.parametrize(
    ("free", "total", "state"),
    [
        (32 * GIB, 32 * GIB, "ok"),
        (64 * MIB, 64 * MIB, "warn"),
        (0, 64 * MIB, "fail"),
        (None, None, "warn"),
    ],
)
def test_shared_memory(free, total, state):
    host = replace(HOST, shared_free_bytes=free, shared_bytes=total)
    assert check_whole(host_checks.check_shared_memory(host)).state == state


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({}, "ok"),
        ({"free_bytes": 2 * GIB}, "warn"),
        ({"free_bytes": 0}, "fail"),
        ({"free_bytes": None}, "unknown"),
        ({"writable": False}, "fail"),
    ],
)
def test_disks(fields, state):
    (finding,) = host_checks.check_disks([replace(DISK, **fields)])
    assert check_whole(finding).state == state
    assert state == "ok" or "export TMPDIR=/path" in finding.remedy


def test_locked_memory_nvme_and_ports():
    assert host_checks.check_locked_memory(HOST).state == "ok"
    bounded = replace(HOST, locked_bytes=8 * MIB)
    assert check_whole(host_checks.check_locked_memory(bounded)).state == "warn"
    nothing_needs_it = replace(bounded, infiniband=False, nvme=())
    assert host_checks.check_locked_memory(nothing_needs_it).state == "ok"
    assert host_checks.check_nvme(HOST).state == "ok"
    assert check_whole(host_checks.check_nvme(replace(HOST, libaio=False))).state == "warn"
    assert host_checks.check_nvme(replace(HOST, nvme=(), libaio=False)).state == "ok"
    assert host_checks.check_ports(HOST).state == "ok"
    assert check_whole(host_checks.check_ports(replace(HOST, ports=(True, False)))).state == "warn"
    assert check_whole(host_checks.check_ports(replace(HOST, ports=(False, False)))).state == "fail"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ["ok", "ok"]),
        ({"cores": 2}, ["warn", "ok"]),
        ({"waiting": 0.5, "busiest": ("pid 7 (cc1plus)",)}, ["ok", "warn"]),
        ({"waiting": None}, ["ok", "unknown"]),
    ],
)
def test_cores(fields, expected):
    found = list(host_checks.check_cores(replace(HOST, **fields)))
    assert states(found) == expected
    assert "busiest" not in fields or "pid 7 (cc1plus)" in found[1].found


def test_this_machine_is_read_as_it_is():
    host = host_facts.host_state()
    assert 0 < host.free_bytes <= (host.limit_bytes or host.machine_bytes)
    assert 1 <= host.cores <= host.machine_cores == os.cpu_count()
    assert all(disk.free_bytes for disk in host.disks)
    assert host.ports[0]


def test_a_port_that_is_taken_is_seen():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        assert not host_facts._can_bind(holder.getsockname()[1])


def test_a_disk_is_judged_where_its_folder_would_be_made(tmp_path):
    disk = host_facts._disk("cache", tmp_path / "no" / "such", "AUTOTUNE_CACHE")
    assert disk.writable and disk.free_bytes
    assert not host_facts._disk("cache", Path("/proc/self/no"), "AUTOTUNE_CACHE").free_bytes


def test_a_lock_counts_as_left_once_nobody_has_it_open(tmp_path):
    lock = tmp_path / "cpu_adam" / "lock"
    lock.parent.mkdir()
    environment = {"TORCH_EXTENSIONS_DIR": str(tmp_path)}
    assert host_facts.left_locks(environment) == []
    with lock.open("w"):
        assert host_facts.left_locks(environment) == []
    assert host_facts.left_locks(environment) == [str(lock)]


def test_the_capability_to_lock_memory_lifts_the_limit(tmp_path, monkeypatch):
    status = tmp_path / "status"
    limits = (8 * MIB, 8 * MIB)
    monkeypatch.setattr(host_facts.resource, "getrlimit", lambda _: limits)
    status.write_text("Name:\tx\nCapEff:\t0000000000004000\n", encoding="utf-8")
    assert host_facts.locked_bytes(status) is None
    status.write_text("Name:\tx\nCapEff:\t00000000a80425fb\n", encoding="utf-8")
    assert host_facts.locked_bytes(status) == 8 * MIB


def test_pressure_is_read_of_what_the_kernel_writes(tmp_path):
    file = tmp_path / "cpu"
    assert host_facts.waiting(file) is None
    file.write_text("some avg10=12.50 avg60=2.69 avg300=8.95 total=109602480\n", encoding="utf-8")
    assert host_facts.waiting(file) == 0.125


def test_a_compiler_is_the_one_that_is_named(tmp_path):
    assert not host_facts.build_tools({"CXX": str(tmp_path / "none")})["a C++ compiler"]
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\n", encoding="utf-8")
    compiler.chmod(0o755)
    assert host_facts.build_tools({"CXX": f"{compiler} -std=c++17"})["a C++ compiler"]
