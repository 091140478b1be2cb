"""What a child may print and write, and that none of it harms the parent."""

import os
from pathlib import Path
from typing import Any

from staging import Stage

from autotune.process.messages import read_json
from autotune.process.progress import LIMIT_BYTES


def test_100_mb_of_output_leave_a_bounded_log_that_has_the_end(stage: Stage) -> None:
    ending = stage.run("shouts")
    assert ending.exit_code == 0
    assert read_json(stage.folder.reply) == {"outcome": "crash", "reason": "loud"}
    assert stage.folder.stdout.stat().st_size <= LIMIT_BYTES
    assert stage.folder.stdout.read_bytes().endswith(b"the last line\n")


def test_a_log_stays_bounded_while_the_child_still_writes(stage: Stage) -> None:
    """Between two looks it may grow by what 0.05 s allow, but it does not keep what was said."""
    sizes: list[int] = []

    def watch(event: dict[str, Any]) -> str | None:
        sizes.append(stage.folder.stdout.stat().st_blocks * 512)
        return None

    ending = stage.run("shouts_slowly", watch=watch)
    assert (ending.exit_code, len(sizes)) == (0, 20)
    assert max(sizes) <= LIMIT_BYTES + 20 * 2**20
    assert stage.folder.stdout.stat().st_size <= LIMIT_BYTES


def test_a_log_that_was_cut_has_no_hole(stage: Stage) -> None:
    stage.run("shouts")
    assert b"\0" not in stage.folder.stdout.read_bytes()


def test_output_that_is_not_utf8_is_kept_as_it_is(stage: Stage) -> None:
    assert stage.run("garbled_output").exit_code == 0
    assert stage.folder.stdout.read_bytes() == b"\xff\xfe\x00 not utf-8 \x80\n"
    assert stage.folder.stderr.read_bytes() == b"\xc3\x28\n"


def test_garbage_among_progress_is_passed_over(stage: Stage) -> None:
    ending = stage.run("garbled_progress")
    assert ending.exit_code == 0
    assert [event["number"] for event in ending.events] == [0, 1, 2]


def test_stdin_is_empty_and_the_servers_pipes_are_out_of_reach(stage: Stage) -> None:
    stage.run("lists_its_descriptors")
    reply = read_json(stage.folder.reply)
    assert isinstance(reply, dict)
    assert reply["0"] == os.devnull
    assert Path(reply["1"]) == stage.folder.stdout
    assert Path(reply["2"]) == stage.folder.stderr
    assert [path for path in reply.values() if path.startswith("pipe:")] == []


def test_links_in_place_of_a_childs_logs_lead_nowhere(stage: Stage, tmp_path: Path) -> None:
    stage.folder.path.mkdir(parents=True)
    for log in (stage.folder.stdout, stage.folder.stderr, stage.folder.progress):
        log.symlink_to(tmp_path / "other")
    assert stage.run("garbled_output").exit_code == 0
    assert stage.folder.stderr.read_bytes() == b"\xc3\x28\n"
    assert not (tmp_path / "other").exists()
