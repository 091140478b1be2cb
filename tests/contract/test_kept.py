"""Servers that are kept between uses: what the next one gets, and what is never handed on."""

import os
import signal
from pathlib import Path

import pytest
from staging import STUBS_PATH, Stage, still_running

from autotune.process.child_server import ChildServer
from autotune.process.limits import Limits
from autotune.process.messages import ChildFolder
from tests.kept import kept_servers


def server_in(folder: Path) -> ChildServer:
    return ChildServer(folder / "log", preload=(), environment={"PYTHONPATH": STUBS_PATH})


def parent_and_surroundings(folder: Path, *names: str) -> tuple[int, list[str | None]]:
    """Which server a child has, and what it sees: these variables and its folder."""
    with server_in(folder) as server:
        stage = Stage(server, folder / "probe")
        assert stage.run("says_its_surroundings", names=list(names)).exit_code == 0
    parent, *seen = (stage.folder.path / "surroundings").read_text("utf-8").split("\n")
    return int(parent), [value or None for value in seen]


def test_the_next_gets_the_same_server_with_its_own_environment_and_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    monkeypatch.setenv("OF_THE_FIRST", "1")
    with kept_servers():
        first, seen = parent_and_surroundings(tmp_path, "OF_THE_FIRST", "OF_THE_NEXT")
        assert seen == ["1", None, str(Path.cwd())]
        monkeypatch.delenv("OF_THE_FIRST")
        monkeypatch.setenv("OF_THE_NEXT", "2")
        monkeypatch.chdir(tmp_path / "there")
        again, seen = parent_and_surroundings(tmp_path, "OF_THE_FIRST", "OF_THE_NEXT")
        assert seen == [None, "2", str(tmp_path / "there")]
        assert again == first
        assert still_running([first], within_s=0) == [first]
    assert still_running([first]) == []


def test_two_at_a_time_are_two_servers(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with kept_servers(), server_in(tmp_path) as server:
        assert server.is_alive
        other, _ = parent_and_surroundings(tmp_path / "other")
        again, _ = parent_and_surroundings(tmp_path / "other")
        assert again == other


def test_what_counts_while_the_stack_is_imported_is_never_handed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kept_servers():
        first, _ = parent_and_surroundings(tmp_path)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
        other, _ = parent_and_surroundings(tmp_path)
        assert other != first


def test_a_server_whose_run_was_broken_off_or_that_died_is_not_kept(tmp_path: Path) -> None:
    def break_off(_: object) -> None:
        raise KeyboardInterrupt

    with kept_servers():
        first, _ = parent_and_surroundings(tmp_path)
        with server_in(tmp_path) as server, pytest.raises(KeyboardInterrupt):
            cut = ChildFolder(path=tmp_path / "cut")
            cut.path.mkdir()
            server.run(cut, "stubs:talks_while_asleep", Limits(wall_s=30.0), break_off)
        assert still_running([first]) == []
        second, _ = parent_and_surroundings(tmp_path)
        with server_in(tmp_path) as server:
            assert Stage(server, tmp_path / "dies").run("kills_the_server").why == "lost"
        third, _ = parent_and_surroundings(tmp_path)
        os.kill(third, signal.SIGKILL)
        assert still_running([third]) == []
        fourth, _ = parent_and_surroundings(tmp_path)
        assert len({first, second, third, fourth}) == 4


def test_by_itself_a_server_ends_with_its_use(tmp_path: Path) -> None:
    first, _ = parent_and_surroundings(tmp_path)
    assert still_running([first]) == []


def test_what_a_child_starts_imports_nothing_from_the_users_folder_either(tmp_path: Path) -> None:
    _, (safe, _) = parent_and_surroundings(tmp_path, "PYTHONSAFEPATH")
    assert safe == "1"
