"""What runs beside us is not waited for, and ends with us."""

import os
import time
from pathlib import Path

from autotune.process.companion import Companion

DEAF = ("http.server", ["--bind", "127.0.0.1", "0"])
"""A module that never looks at its input."""


def test_who_does_not_listen_holds_nobody_up_and_is_ended(tmp_path: Path) -> None:
    companion = Companion(DEAF[0], DEAF[1], log=tmp_path / "log")
    for _ in range(8):  # more than any pipe takes
        companion.send({"text": "x" * 2**18})
    assert companion.exit_code is None
    assert not companion.finish(quiet_s=0.2)
    companion.close()
    assert companion.exit_code == -9


def test_who_has_ended_is_told_nothing_and_its_log_says_why(tmp_path: Path) -> None:
    log = tmp_path / "log"
    companion = Companion("no_such_module", [], log=log)
    while companion.exit_code is None:
        time.sleep(0.02)
    companion.send({"late": True})
    assert companion.finish(quiet_s=60)
    assert companion.exit_code == 1 and "no_such_module" in log.read_text(encoding="utf-8")
    companion.close()


def test_it_takes_whole_lines_in_order_and_ends_with_its_input(tmp_path: Path) -> None:
    """`json.tool --json-lines` gives back what it takes."""
    companion = Companion("json.tool", ["--json-lines", "--compact"], log=tmp_path / "log")
    messages = [{"number": number, "text": "ü" * 2**14} for number in range(10)]
    for message in messages:
        companion.send(message)
    assert companion.finish(quiet_s=60) and companion.exit_code == 0
    assert companion.lines() == messages
    companion.close()


def test_it_stands_back_in_a_session_of_its_own(tmp_path: Path) -> None:
    companion = Companion(DEAF[0], DEAF[1], log=tmp_path / "log")
    assert os.getpriority(os.PRIO_PROCESS, companion.pid) >= 5
    assert os.getsid(companion.pid) == companion.pid
    companion.close()
