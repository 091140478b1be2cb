"""Runs that are killed, or looked at, at any moment come to the recommendation of an undisturbed
one."""

import itertools
import json
import multiprocessing
import os
import random
import signal
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from click.testing import CliRunner

from autotune.cli import main
from autotune.errors import UserError
from autotune.process.run_folder import RunFolder
from autotune.search import storage
from autotune.search.study import Study
from tests.unit.builders import make_job, make_sampler, make_space
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


def begin_and_die(folder: Path, moment: int) -> None:
    """Begin a run, and be killed before one of its changes of names."""
    replace, left = Path.replace, moment

    def replace_or_die(self: Path, target: Path) -> Path:
        nonlocal left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        return replace(self, target)

    with mock.patch.object(Path, "replace", replace_or_die):
        RunFolder(path=folder).begin("model: m\n", {"schema": 1})


@pytest.mark.parametrize("moment", range(4))
def test_a_run_that_is_killed_while_it_begins_can_begin_again(tmp_path: Path, moment: int) -> None:
    run = RunFolder(path=tmp_path / "run")
    fork = multiprocessing.get_context("fork")
    process = fork.Process(target=begin_and_die, args=(run.path, moment))
    process.start()
    process.join()
    assert (process.exitcode, run.exists()) == ((0, True) if moment == 3 else (-9, False))
    if moment < 3:
        run.begin("model: m\n", {"schema": 2})
    assert sorted(file.name for file in run.path.iterdir()) == ["job.yaml", "run.json"]


def test_a_job_that_is_not_its_own_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("model: mine\n", encoding="utf-8")
    with pytest.raises(UserError, match="the folder is not empty"):
        RunFolder(path=tmp_path).begin("model: m\n", {})


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


def open_study(folder: Path) -> None:
    space = make_space(make_job())
    Study(space, folder / "study.db", "study", allowed_bytes=None, sampler=make_sampler(space))


def open_study_and_die(folder: Path) -> None:
    """Open a study, and be killed after its tables and before their indexes are made."""
    connect = storage._connect

    def die(statement: str) -> None:
        if statement.lstrip().startswith("CREATE UNIQUE INDEX"):
            os.kill(os.getpid(), signal.SIGKILL)

    def traced(*arguments: Any) -> Any:
        connection = connect(*arguments)
        connection.set_trace_callback(die)
        return connection

    with mock.patch.object(storage, "_connect", traced):
        open_study(folder)


def test_a_kill_while_a_study_is_made_leaves_none_or_a_whole_one(tmp_path: Path) -> None:
    """Without their indexes a study could be there twice, and is not found any more."""
    process = multiprocessing.get_context("fork").Process(
        target=open_study_and_die, args=(tmp_path,)
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    for _ in range(3):
        open_study(tmp_path)


def test_reports_and_bundles_while_a_run_goes_on_are_whole_and_disturb_nothing(
    tmp_path: Path,
) -> None:
    (tmp_path / "whole").mkdir()
    undisturbed, shown = play(tmp_path / "whole"), 0
    for number in range(2):
        folder = tmp_path / str(number)
        folder.mkdir()
        process = multiprocessing.get_context("fork").Process(target=play, args=(folder,))
        process.start()
        run, made = str(folder / "run"), itertools.count()
        while process.is_alive():
            page, bundle = folder / f"{next(made)}.html", folder / f"b{next(made)}"
            for words in (
                ("report", run),
                ("report", run, "--json"),
                ("report", run, "--html", str(page)),
                ("emit", run, "--out", str(bundle)),
            ):
                result = CliRunner().invoke(main, words)
                assert result.exit_code in (0, 2), (words, result.stderr)
                assert result.exit_code or "--json" not in words or json.loads(result.stdout)
                shown += result.exit_code == 0
            assert not page.exists() or page.read_text("utf-8").rstrip().endswith("</html>")
            assert not bundle.exists() or (bundle / "launch.sh").stat().st_size
        process.join()
        assert process.exitcode == 0
        assert play(folder) == undisturbed
    assert shown, "some looks met a run that had something to show"
