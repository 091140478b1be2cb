"""The terminal of a run is closed: it ends as by SIGTERM (which `autotune` sends itself then), with
what it has, and can be resumed."""

import fcntl
import json
import os
import subprocess
import sys
import termios
import time
from collections.abc import Callable

from tests.cpu.conftest import Command
from tests.cpu.test_run import FEW, own_children, probes_of, write_job


def on_terminal(terminal: int) -> Callable[[], None]:
    """What a child does first that is to have a terminal of its own."""

    def become_its_owner() -> None:
        os.setsid()
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)

    return become_its_owner


def test_a_closed_terminal_ends_a_run_cleanly(autotune: Command) -> None:
    write_job(autotune.folder, budget={"probes": 30, "minutes": 5}, fixed=FEW)
    ours, terminal = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "autotune", "run", "job.yaml", "--out", "run", "--no-verify"],
        cwd=autotune.folder,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        preexec_fn=on_terminal(terminal),
    )
    os.close(terminal)
    run = autotune.folder / "run"
    deadline = time.monotonic() + 120
    while not (run / "probes" / "0001" / "progress.jsonl").exists():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    os.close(ours)
    assert process.wait(timeout=60) == 130
    assert not own_children(str(autotune.folder))
    ending = json.loads((run / "ending.json").read_text(encoding="utf-8"))
    assert ending["outcome"] == "interrupted"
    outcomes = [probe["outcome"] for probe in probes_of(autotune, "run")]
    assert outcomes == ["ok", "interrupted"]
