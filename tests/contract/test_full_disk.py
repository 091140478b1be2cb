"""A disk that is full under a probe: a real file system of two megabytes."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from staging import Stage

from autotune.errors import MachineError
from autotune.probe import measure
from autotune.process.server import ChildServer
from tests.unit.builders import make_candidate, make_facts, make_job

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2M", "none", folder], capture_output=True, text=True
    )
    if mount.returncode:
        pytest.skip(f"nothing can be mounted here: {mount.stderr.strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_crash_on_a_full_disk_says_nothing_of_its_candidate(
    shared_server: ChildServer, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "WORKER", "stubs:fills_its_disk")
    stage = Stage(shared_server, small_disk / "probe")
    with pytest.raises(MachineError) as raised:
        measure.measure_candidate(
            stage.server,
            stage.folder,
            make_job(),
            make_facts(),
            make_candidate(),
            rows=small_disk,
            output_dir=small_disk,
            limit=2**40,
        )
    (problem,) = raised.value.problems
    assert (problem.where, problem.what) == (str(small_disk / "probe"), "the disk is full")
    assert "--resume" in (problem.hint or "")
    assert not stage.folder.reply.exists()
    assert not stage.folder.measurement.exists()
