"""`--record`, and streams that take nothing."""

import subprocess
import sys
from pathlib import Path

import pytest

from autotune.cli.views.events import EVENTS, recorded
from autotune.errors import UserError
from autotune.run.listener import Listener
from tests.unit.past_run import write_job

PROGRAM = [sys.executable, "-m", "autotune"]


@pytest.mark.parametrize("name", ["result.json", "bundle"])
def test_a_record_replaces_nothing_that_is_not_of_one(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(UserError, match=f"there is a `{name}` that no `--record` has made"):
        recorded(tmp_path, Listener())
    assert not (tmp_path / EVENTS).exists()


def test_a_record_that_goes_on_follows_no_link(tmp_path: Path) -> None:
    record, other = tmp_path / "record", tmp_path / "other"
    record.mkdir()
    other.mkdir()
    (record / EVENTS).touch()
    (record / "result.json").touch()
    (record / "bundle").symlink_to(other)
    with pytest.raises(UserError, match="this link leads elsewhere"):
        recorded(record, Listener())


def test_help_on_a_full_disk_is_an_error_in_words() -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run([*PROGRAM, "--help"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (3, "error: No space left on device\n")


def test_a_reader_that_ends_early_is_no_error_of_the_machine(tmp_path: Path) -> None:
    command = [*PROGRAM, "validate", str(write_job(tmp_path))]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert (process.stderr.read(), process.wait(60)) == (b"", 130)
    process.stderr.close()
