"""What a probe keeps on a disk is in a folder of its own, and gone afterwards."""

import os
import subprocess

import pytest

from autotune.probe.measure import probe_request
from autotune.probe.nvme_folder import own_folder
from autotune.process.proc import start_ticks
from autotune.space.bind import bind
from autotune.space.definition import load_definition
from tests.unit.builders import make_facts, make_job

ON_DISK = {"distributed_type": "DEEPSPEED", "zero_stage": 3, "offload_optimizer_device": "nvme"}


def request(path, **fixed):
    job = make_job(devices={"count": 2}, fixed={"nvme_path": str(path), **ON_DISK, **fixed})
    facts = make_facts()
    candidate = bind(load_definition("sft"), job, facts).candidates[0]
    return probe_request(job, facts, candidate, rows=path, output_dir="out", limit=None)


def paths(request_of_probe):
    zero = request_of_probe.deepspeed["zero_optimization"]
    return {section["nvme_path"] for section in zero.values() if isinstance(section, dict)}


@pytest.mark.parametrize("weights", ["none", "nvme"])
def test_the_folder_is_its_own_and_goes_with_it(nasty_dir, weights):
    original = request(nasty_dir, offload_param_device=weights)
    assert paths(original) == {str(nasty_dir)}
    with pytest.raises(ZeroDivisionError), own_folder(original) as request_in_folder:
        (inside,) = nasty_dir.glob("*")
        assert paths(request_in_folder) == {str(inside)}
        assert request_in_folder.parsed_sharding == original.parsed_sharding
        (inside / "states").write_text("x")
        raise ZeroDivisionError
    assert not list(nasty_dir.glob("*"))


def test_what_a_killed_run_left_is_removed_and_nothing_else(tmp_path):
    """A real process makes its folder and is killed; others are of living ones and other hosts."""
    disk = tmp_path / "disk"
    disk.mkdir()
    with own_folder(request(disk)):
        (ours,) = disk.glob("*")
    head, pid, started = ours.name.rsplit("-", 2)
    assert pid == str(os.getpid())
    host = os.uname().nodename
    dead = subprocess.Popen(["sleep", "60"])
    left = f"{head}-{dead.pid}-{start_ticks(dead.pid)}"
    kept = {
        f"{head}-{os.getppid()}-{start_ticks(os.getppid())}",
        f"{head.replace(host, 'elsewhere')}-{dead.pid}-{start_ticks(dead.pid)}",
        "mine",
    }
    reused = f"{head}-{os.getppid()}-{start_ticks(os.getppid()) - 1}"
    for name in (left, reused, *kept):
        (disk / name).mkdir()
    with own_folder(request(disk)):
        assert {folder.name for folder in disk.glob("*")} == {left, ours.name, *kept}
    dead.kill()
    dead.wait()
    with own_folder(request(disk)):
        pass
    assert {folder.name for folder in disk.glob("*")} == kept


def test_where_no_folder_can_be_the_child_is_asked_as_before(tmp_path):
    original = request(tmp_path / "not there")
    with own_folder(original) as request_in_folder:
        assert request_in_folder is original
