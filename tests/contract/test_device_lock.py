"""One process of a user at a time measures on a device: real processes, and one that is killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

HOLD = """
import os, signal, sys
from pathlib import Path
from autotune.job.job import Devices
from autotune.process.device_lock import devices_locked
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
os.sched_setaffinity(0, {int(core) for core in sys.argv[1].split(",")})
def say(text): print(text, flush=True)
with devices_locked(Devices(kind="cpu"), Path("/runs") / sys.argv[2], say):
    say("held")
    sys.stdin.read()
"""
CORES = sorted(os.sched_getaffinity(0))


def hold(name: str, cores: list[int] = CORES) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", HOLD, ",".join(map(str, cores)), name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Test runs on other cores hold locks, too."""
    monkeypatch.setenv("AUTOTUNE_CACHE", str(tmp_path / "cache"))


def test_a_second_waits_with_a_message_until_the_first_is_dead() -> None:
    first = hold("first")
    assert line(first) == "held"
    second = hold("second")
    said = line(second)
    assert said.startswith(f"pid {first.pid} measures on this device since ")
    assert said.endswith(", in /runs/first")
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert line(second) == "held"
    third = hold("third")
    assert line(third).endswith(", in /runs/second")
    third.send_signal(signal.SIGINT)  # Ctrl-C while it waits
    assert third.wait(timeout=20) != 0
    third.communicate()
    second.communicate()
    assert second.returncode == 0


@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
def test_who_computes_on_other_cores_does_not_wait() -> None:
    holders = [hold("one", CORES[:1]), hold("other", CORES[1:2])]
    try:
        assert [line(holder) for holder in holders] == ["held", "held"]
    finally:
        for holder in holders:
            holder.communicate()


def test_where_nothing_can_be_written_nothing_waits(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file, not a folder", encoding="utf-8")
    holder = hold("one")
    assert line(holder) == "held"
    holder.communicate()
    assert holder.returncode == 0
