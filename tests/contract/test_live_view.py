"""What a run shows as it goes, in a real terminal: screens compared with recorded ones.

    python -m tests.contract.test_live_view    records them anew

Then look at the difference, as a user would.
"""

import os
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.cli.views.live import LiveConsole, has_room
from tests.contract.live_script import MOMENTS
from tests.terminals import Terminal, terminal

ROOT = Path(__file__).parents[2]
SCREENS = Path(__file__).parent / "screens"
WIDTHS = (120, 60, 50)
"""The last of them is too narrow for a panel."""
HEIGHT = 24
STARTED_S, DRAWN_S = 60.0, 20.0
PANEL = re.compile(r"^(now|steps|memory|best|gain|time|budget|left|out) {3,}", re.MULTILINE)
CLOCKS = re.compile(r"^(now|steps|time|budget) .*", re.MULTILINE)
COLOURS = re.compile(r"\x1b\[[\d;]*3\d")


def normalised(screen: str) -> str:
    """A screen without the times that run, and without what they move to where a row is cut."""

    def without_times(row: re.Match[str]) -> str:
        text = re.sub(r"\b(\d+ min|[\d.]+ s)\b( \d+ s\b)?", "T", row[0])
        return re.sub(r"^((?:\S+ +){4}).*…$", r"\1…", text)

    return CLOCKS.sub(without_times, screen)


def without_steps(screen: str) -> set[str]:
    """What a screen says that does not follow from the steps of a probe."""
    lines = normalised(screen).splitlines()
    return {line for line in lines if not line.startswith(("steps ", "memory "))}


def screens(there: Terminal, signs: Path) -> Iterator[tuple[str, int]]:
    """Goes through the moments of the script, and shows each at each width: its name, the width."""
    with signs.open("w", encoding="utf-8") as sign:
        for moment in MOMENTS:
            there.resize(WIDTHS[0], HEIGHT)
            print("go on", file=sign, flush=True)
            for width in WIDTHS if moment is not MOMENTS[-1] else WIDTHS[:1]:
                there.resize(width, HEIGHT)
                yield moment.__name__, width


def play(folder: Path, *options: str) -> tuple[str, Path, dict[str, str]]:
    """The line that plays the script, its signs, and its environment."""
    signs = folder / "signs"
    os.mkfifo(signs)
    script = ROOT / "tests" / "contract" / "live_script.py"
    command = [sys.executable, str(script), str(signs), *options]
    return (
        shlex.join(command),
        signs,
        {"PYTHONPATH": str(ROOT), "NO_COLOR": "1", "CI": "", "COLUMNS": "100"},
    )


def recorded(moment: str, width: int) -> Path:
    """The file of a screen."""
    return SCREENS / f"{moment}-{width}.txt"


def test_each_moment_is_seen_at_each_width(tmp_path: Path) -> None:
    command, signs, environment = play(tmp_path)
    with terminal(command, tmp_path, WIDTHS[0], HEIGHT, environment) as there:
        for moment, width in screens(there, signs):
            expected = recorded(moment, width).read_text(encoding="utf-8").rstrip("\n")
            seen = there.until(lambda screen, e=expected: normalised(screen) == e, STARTED_S)
            assert normalised(seen) == expected, f"{moment} at {width} columns"
            assert all(len(line) <= width for line in seen.splitlines())
        assert not PANEL.search(there.screen()), "nothing of the panel is left"
        assert there.shows_cursor
        assert not COLOURS.search(there.screen(colours=True)), "NO_COLOR is set"


def test_a_services_run_is_seen_as_one_that_is_done_here(tmp_path: Path) -> None:
    """But for the steps within a probe, which no service sends."""
    command, signs, environment = play(tmp_path, "remote")
    with (
        terminal(command, tmp_path, WIDTHS[0], HEIGHT, environment) as there,
        signs.open("w", encoding="utf-8") as sign,
    ):
        for moment in MOMENTS:
            print("go on", file=sign, flush=True)
            expected = recorded(moment.__name__, WIDTHS[0]).read_text(encoding="utf-8")
            lines = without_steps(expected)
            seen = there.until(lambda screen, e=lines: e <= without_steps(screen), STARTED_S)
            assert lines <= without_steps(seen), moment.__name__
            assert not re.search("^steps .*starts", seen, re.MULTILINE), "nobody tells of it"
        assert there.shows_cursor


@pytest.mark.parametrize(
    ("environment", "size", "room"),
    [
        ({}, (60, 12), True),
        ({}, (59, 12), False),
        ({}, (60, 11), False),
        ({"CI": "true"}, (80, 24), False),
        ({"TERM": "dumb"}, (80, 24), False),
    ],
)
def test_where_there_is_no_room_it_is_lines_alone(
    environment: dict[str, str],
    size: tuple[int, int],
    room: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {"TERM": "xterm", "CI": "", **environment}.items():
        monkeypatch.setenv(name, value)
    ours, theirs = os.openpty()
    with os.fdopen(ours), os.fdopen(theirs, "w") as file:
        console = LiveConsole(file=file, width=size[0], height=size[1])
        assert has_room(console) == room


def test_a_pipe_gets_lines_whatever_is_said_of_colours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with (tmp_path / "file").open("w") as file:
        assert not has_room(LiveConsole(file=file, width=80, height=24))


def test_what_is_printed_to_a_closed_terminal_is_lost() -> None:
    """Its SIGHUP may come later than the first line that cannot be printed."""
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "w") as file:
        console = LiveConsole(file=file, width=80, height=24)
        os.close(ours)
        with pytest.raises(OSError, match="Input/output"):
            os.write(theirs, b"a line")
        console.print_line("a line")
        os.dup2(os.open(os.devnull, os.O_WRONLY), theirs)  # as SIGHUP does


def record() -> None:
    """Write every screen anew."""
    for file in SCREENS.glob("*.txt"):
        file.unlink()
    with tempfile.TemporaryDirectory() as name:
        command, signs, environment = play(Path(name))
        with terminal(command, Path(name), WIDTHS[0], HEIGHT, environment) as there:
            for moment, width in screens(there, signs):
                time.sleep(3)
                file = recorded(moment, width)
                file.write_text(normalised(there.screen()) + "\n", encoding="utf-8")


if __name__ == "__main__":
    record()
