"""Files are written whole, a folder in one step whenever its writer is killed, and nothing through
a link that lies where this program writes.
"""

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import UserError
from autotune.process import files as whole_files
from autotune.process.files import finish_replacement, put_in_place, write_whole
from autotune.process.messages import write_json
from autotune.process.run_folder import RunFolder
from tests.unit.calling import refused
from tests.unit.past_run import make_run

OLD, NEW = {"a": "old", "b": "old"}, {"a": "new", "launch.sh": "new"}


def killed_at(step: int, target: Path, way: str) -> int:
    """How a process ended that replaces `target` and is killed before its change number `step`."""
    pid = os.fork()
    if pid == 0:
        left = step

        def counted(call: Callable[..., Any]) -> Callable[..., Any]:
            def once(*arguments: Any, **named: Any) -> Any:
                nonlocal left
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*arguments, **named)

            return once

        for owner, name in ((os, "fsync"), (Path, "rename"), (shutil, "rmtree")):
            setattr(owner, name, counted(getattr(owner, name)))
        exchange = counted(whole_files._exchange) if way == "exchange" else lambda *_: False
        whole_files._exchange = exchange
        put_in_place(target, NEW)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def held(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text(encoding="utf-8") for file in folder.iterdir()}


@pytest.mark.parametrize("way", ["exchange", "rename"])
def test_a_kill_at_any_step_leaves_one_of_the_two(tmp_path: Path, way: str) -> None:
    """At every call that changes something on disk, in turn."""
    seen, folder = [], tmp_path / "run"
    for step in range(20):
        target = folder / f"bundle-{step}"
        put_in_place(target, OLD)
        code = killed_at(step, target, way)
        if way == "exchange":
            assert held(target) in (OLD, NEW)
        finish_replacement(target)
        seen.append(held(target))
        assert seen[-1] in (OLD, NEW)
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert code == 0 and 5 < step < 19
    assert OLD in seen and seen[-2:] == [NEW, NEW]
    assert {entry.name for entry in folder.iterdir()} == {f"bundle-{n}" for n in range(step + 1)}


def test_this_file_system_exchanges_two_names_at_once(tmp_path: Path) -> None:
    for name, files in (("one", OLD), ("other", NEW)):
        put_in_place(tmp_path / name, files)
    if not whole_files._exchange(tmp_path / "one", tmp_path / "other"):
        pytest.skip("it cannot")
    assert (held(tmp_path / "one"), held(tmp_path / "other")) == (NEW, OLD)


def test_the_next_command_clears_what_a_killed_one_left(tmp_path: Path) -> None:
    run = RunFolder(path=tmp_path / "run")
    run.write_bundle(run.bundle, NEW)
    write_json(run.run, {})
    (run.path / ".autotune-killed" / "new").mkdir(parents=True)
    run.bundle.rename(run.path / ".autotune-killed" / "before")
    with run.locked():
        assert {entry.name for entry in run.path.iterdir()} == {"bundle", ".lock", "run.json"}
        assert os.access(run.launch, os.X_OK)
        with pytest.raises(UserError, match="another autotune process"), run.locked():
            pass


def test_what_lies_beside_a_target_is_somebody_elses(tmp_path: Path) -> None:
    """Whatever its name; also where no run was begun, and where nothing could be written."""
    names = (".x.draft", ".x.before", ".autotune-x", "a.json.draft")
    theirs = [f"{name}/precious" for name in names]
    for name in theirs:
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    put_in_place(tmp_path / "x", NEW)
    with RunFolder(path=tmp_path).locked():
        pass
    with pytest.raises(OSError, match="too long"):
        put_in_place(tmp_path / "x", {"a" * 300: "text"})
    files = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file()}
    assert files == {*theirs, "x/a", "x/launch.sh", ".lock"}
    assert held(tmp_path / "x") == NEW


def test_a_link_in_the_place_of_a_bundle_is_replaced_and_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "theirs").touch()
    run = RunFolder(path=tmp_path / "run")
    run.path.mkdir()
    run.bundle.symlink_to(elsewhere)
    for _ in range(2):
        run.write_bundle(run.bundle, NEW)
        assert not run.bundle.is_symlink() and run.launch.is_file()
        assert {entry.name for entry in run.path.iterdir()} == {"bundle"}
    assert [entry.name for entry in elsewhere.iterdir()] == ["theirs"]


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("x.json.draft", lambda path: write_json(path.with_name("x.json"), {})),
        ("x.yaml.draft", lambda path: write_whole(path, "text")),
    ],
)
@pytest.mark.parametrize("kind", ["link", "second name", "pipe"])
def test_a_link_is_not_written_through_and_a_pipe_not_waited_for(
    tmp_path: Path, name: str, write: Callable[[Path], None], kind: str
) -> None:
    other, path = tmp_path / "other", tmp_path / name
    other.write_text("kept", encoding="utf-8")
    if kind == "link":
        path.symlink_to(other)
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.hardlink_to(other)
    with pytest.raises(OSError, match=f"is a link, a pipe or .* remove it, .*: '{path}'"):
        write(path)
    assert other.read_text(encoding="utf-8") == "kept"


def test_a_place_that_cannot_be_written_is_refused_with_words(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    before = sorted(tmp_path.iterdir())
    for place in ("link", "link/x", "file/x", "a" * 300, "/proc/x"):
        for command in (
            ("emit", run.path, "--out"),
            ("emit", run.path, "--format", "axolotl", "--out"),
            ("run", tmp_path / "job.yaml", "--out"),
            ("plan", tmp_path / "job.yaml", "--emit"),
            ("report", run.path, "--html"),
            ("init", "--model=m", "--dataset=d", "--method=sft", "--tuning=lora"),
        ):
            said = refused(*command, tmp_path / place)
            assert str(tmp_path / place) in said and "hint: " in said and "[Errno" not in said
            assert sorted(tmp_path.iterdir()) == before
