"""A link that lies in a run folder where this program writes: nothing is written where it leads."""

from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.process.messages import write_json
from autotune.process.whole_folder import write_whole
from tests.unit.calling import call
from tests.unit.past_run import make_run


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("x.json.draft", lambda path: write_json(path.with_name("x.json"), {})),
        ("x.yaml.draft", lambda path: write_whole(path, "text")),
    ],
)
def test_a_link_is_not_written_through(
    tmp_path: Path, name: str, write: Callable[[Path], None]
) -> None:
    other = tmp_path / "other"
    other.write_text("kept", encoding="utf-8")
    (tmp_path / name).symlink_to(other)
    with pytest.raises(OSError, match=f"symbolic link, .* remove it: '{tmp_path / name}'"):
        write(tmp_path / name)
    assert other.read_text(encoding="utf-8") == "kept"


@pytest.mark.parametrize("name", ["server.log", ".lock"])
def test_a_run_with_a_link_in_place_of_its_log_says_so(tmp_path: Path, name: str) -> None:
    run = make_run(tmp_path)
    call("emit", run.path)
    (run.path / name).unlink(missing_ok=True)
    (run.path / name).symlink_to(tmp_path / "other")
    result = call("verify", run.path)
    assert result.exit_code == 3
    assert "this is a symbolic link, and only a file of autotune's own may be here" in result.stderr
    assert f"{run.path / name}" in result.stderr and "Traceback" not in result.stderr
    assert not (tmp_path / "other").exists()
