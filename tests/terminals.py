"""A real terminal for tests: tmux, of which each test has a server of its own."""

import contextlib
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tests.absent import absent

SEEN_S = 0.05


class Terminal:
    """A terminal in which one command runs.

    Args:
        socket: of its server.
    """

    def __init__(self, socket: Path) -> None:
        self._program = shutil.which("tmux") or absent("tmux is not installed")
        self._socket = socket

    def _tmux(self, *arguments: str) -> str:
        command = [self._program, "-f", "/dev/null", "-S", str(self._socket), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def start(self, line: str, width: int, height: int, environment: Mapping[str, str]) -> None:
        """Run a line of a shell in a new terminal of that size; it stays when that has ended."""
        named = [part for pair in environment.items() for part in ("-e", "=".join(pair))]
        size = ["-x", str(width), "-y", str(height)]
        # The shell outlives a Ctrl-C; what it starts hears of it.
        kept = f"trap : INT; {line}; exec sleep 900"
        self._tmux("new-session", "-d", *size, *named, "sh", "-c", kept)

    def resize(self, width: int, height: int) -> None:
        """Give the terminal another size, as a user who drags its corner."""
        self._tmux("resize-window", "-x", str(width), "-y", str(height))

    def type(self, key: str) -> None:
        """Press a key, such as `C-c`."""
        self._tmux("send-keys", key)

    def screen(self, *, colours: bool = False) -> str:
        """What is seen, without empty lines at its end."""
        seen = self._tmux("capture-pane", "-p", *(["-e"] if colours else []))
        return "\n".join(line.rstrip() for line in seen.splitlines()).rstrip()

    @property
    def shows_cursor(self) -> bool:
        """Whether there is a cursor to be seen."""
        return self._tmux("display-message", "-p", "#{cursor_flag}").strip() == "1"

    def until(self, sees: Callable[[str], object], most_s: float) -> str:
        """The first screen of which `sees` holds, or the last within that time."""
        deadline = time.monotonic() + most_s
        while True:
            seen = self.screen()
            if sees(seen) or time.monotonic() > deadline:
                return seen
            time.sleep(SEEN_S)

    def close(self) -> None:
        """End it, and what runs in it."""
        with contextlib.suppress(subprocess.CalledProcessError):
            self._tmux("kill-server")


@contextlib.contextmanager
def terminal(
    line: str, folder: Path, width: int, height: int, environment: Mapping[str, str]
) -> Iterator[Terminal]:
    """A line of a shell in a terminal, in a folder."""
    there = Terminal(folder / "tmux")
    try:
        there.start(f"cd {shlex.quote(str(folder))} && {line}", width, height, environment)
        yield there
    finally:
        there.close()
