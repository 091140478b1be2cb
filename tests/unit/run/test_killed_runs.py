"""Runs that are killed at any moment go on to the recommendation of an undisturbed one."""

import multiprocessing
import random
import signal
import time
from pathlib import Path

import pytest

from tests.unit.run.replayed import play

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


def measured(folder: Path) -> dict[str, str]:
    """What probes have left of their measurements."""
    files = (folder / "run" / "probes").glob("*/measurement.json")
    return {file.parent.name: file.read_text(encoding="utf-8") for file in files}


def test_twenty_kills_lose_nothing_that_was_measured_and_change_no_answer(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    began = time.monotonic()
    undisturbed = play(tmp_path / "whole")
    whole_s, rng, kills = time.monotonic() - began, random.Random(SEED), 0
    assert undisturbed[0] == "recommended"
    for number in range(KILLS):
        folder = tmp_path / str(number)
        folder.mkdir()
        before, most_s = {}, 0.4 * whole_s
        while killed(folder, rng.uniform(0.0, most_s)):
            kills, most_s = kills + 1, 1.1 * most_s
            now = measured(folder)
            assert before.items() <= now.items(), "what was measured stays"
            before = now
        assert play(folder) == undisturbed
        assert before.items() <= measured(folder).items()
        if kills >= KILLS:
            return
    pytest.fail(f"only {kills} of {KILLS} kills met a run that was not over")
