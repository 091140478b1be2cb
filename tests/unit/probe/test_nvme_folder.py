"""What a probe keeps on a disk is in a folder of its own, and gone afterwards."""

import os

import pytest

from autotune.probe.measure import probe_request
from autotune.probe.nvme_folder import own_folder
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
    dead_pid, disk = 2**22 + 1, tmp_path / "disk"  # above the largest pid that the kernel gives out
    disk.mkdir()
    for name in (f"autotune-probe-{dead_pid}", f"autotune-probe-{os.getppid()}", "mine"):
        (disk / name).mkdir()
    with own_folder(request(disk)):
        pass
    names = {folder.name for folder in disk.glob("*")}
    assert names == {f"autotune-probe-{os.getppid()}", "mine"}


def test_where_no_folder_can_be_the_child_is_asked_as_before(tmp_path):
    original = request(tmp_path / "not there")
    with own_folder(original) as request_in_folder:
        assert request_in_folder is original
