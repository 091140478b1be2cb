"""Runs that are killed at any moment go on to the recommendation of an undisturbed one."""

import multiprocessing
import random
import signal
import time
from pathlib import Path

import pytest

from autotune.process.run_folder import RunFolder
from autotune.run.past_run import reopen
from tests.unit.run.replayed import PROBES, play

KILLS = 20
SEED = 11


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_CACHE", str(tmp_path / "cache"))


def killed(folder: Path, after_s: float) -> bool:
    """Play a run in a process that is killed after so long; False: it had ended by then."""
    process = multiprocessing.get_context("fork").Process(target=play, args=(folder,))
    process.start()
    process.join(after_s)
    process.kill()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


def test_twenty_kills_lose_nothing_that_was_measured_and_change_no_answer(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    began = time.monotonic()
    undisturbed = play(tmp_path / "whole")
    whole_s, rng, kills = time.monotonic() - began, random.Random(SEED), 0
    assert undisturbed[0] == "recommended"
    for number in range(KILLS):
        folder = tmp_path / str(number)
        folder.mkdir()
        before = 0
        while killed(folder, rng.uniform(0.0, 0.4 * whole_s)):
            kills += 1
            measured = RunFolder(path=folder / "run").probe_numbers()
            assert len(measured) >= before
            before = len(measured)
        assert play(folder) == undisturbed
        ended = [
            r for r in reopen(folder / "run").records if r.measurement.outcome != "interrupted"
        ]
        assert len({r.number for r in ended}) == len(ended) <= PROBES
        if kills >= KILLS:
            return
    pytest.fail(f"only {kills} of {KILLS} kills met a run that was not over")
