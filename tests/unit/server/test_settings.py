"""`server.yaml` is strict: all that is wrong is said at once, with its line."""

import re
from pathlib import Path

import pytest

from autotune.errors import UserError
from autotune.server.settings import Settings, load_settings


def test_without_a_file_it_is_for_this_machine_and_allows_nothing() -> None:
    settings = load_settings(None)
    assert settings == Settings()
    assert settings.is_local and settings.host == "127.0.0.1"
    allowed = settings.allowed
    assert not (allowed.folders or allowed.hub or allowed.training or allowed.reward_functions)


def test_all_problems_are_said_with_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text(
        'hots: 127.0.0.1\nport: "80"\nplan_memory: 8 parsecs\nfolders: [x]\n'
        "keep: {age: 90, works: 0}\nallowed:\n  folders:\n    - /nope\n    - .\n  minutes: -1\n"
        "  hub: yes\nlimits: {queued: 1.5}\n",
        encoding="utf-8",
    )
    with pytest.raises(UserError) as caught:
        load_settings(file)
    said = {}
    for problem in caught.value.problems:
        match = re.fullmatch(rf"{re.escape(str(file))}:(\d+)", problem.where)
        assert match is not None, problem.where
        said.setdefault(int(match[1]), []).append((problem.what, problem.hint))
    assert sorted(said) == [1, 2, 3, 4, 5, 8, 10, 11, 12]
    assert said[1] == [("unknown field `hots`", "did you mean `host`?")]
    assert said[4] == [("unknown field `folders`", "write it under `allowed`")]
    assert len(said[5]) == 2
    assert said[3][0][1] == "write for example `20GiB`"


@pytest.mark.parametrize("text", ["[1]", "a: [", "allowed: 7", "allowed: {folders: x}", "port:"])
def test_what_is_no_settings_file_is_said(tmp_path: Path, text: str) -> None:
    file = tmp_path / "server.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UserError):
        load_settings(file)
    with pytest.raises(UserError):
        load_settings(tmp_path / "missing.yaml")


def test_folders_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    file = tmp_path / "server.yaml"
    file.write_text("allowed: {folders: [models]}\nport: 1\n", encoding="utf-8")
    settings = load_settings(file, {"port": 2})
    assert settings.allowed.folders == [str(tmp_path / "models")]
    assert settings.port == 2


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("", False)]
    + [("10.0.0.1", False), ("::", False), ("127.0.0.1 ", False)],
)
def test_only_loopback_is_local(host: str, local: bool) -> None:
    assert Settings(host=host).is_local is local
