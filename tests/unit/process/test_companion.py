"""What runs beside us stands back, and ends with us."""

import os
import time
from pathlib import Path

from autotune.process.companion import Companion


def test_it_stands_back_in_a_session_of_its_own_and_is_ended(tmp_path: Path) -> None:
    companion = Companion("http.server", ["--bind", "127.0.0.1", "0"], log=tmp_path / "log")
    assert os.getpriority(os.PRIO_PROCESS, companion.pid) >= 5
    assert os.getsid(companion.pid) == companion.pid
    assert companion.exit_code is None
    companion.close()
    assert companion.exit_code == -9


def test_where_it_has_ended_its_log_says_why(tmp_path: Path) -> None:
    log = tmp_path / "log"
    companion = Companion("no_such_module", [], log=log)
    while companion.exit_code is None:
        time.sleep(0.02)
    assert companion.exit_code == 1 and "no_such_module" in log.read_text(encoding="utf-8")
    companion.close()
