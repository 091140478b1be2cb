"""The rows of a run below what it prints, in a terminal with room for them; else lines alone.

A run that a service does is seen as one that is done here.
"""

import contextlib
import dataclasses
import errno
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import IO, Any, cast

from rich.console import Console, ConsoleRenderable, Group
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType
from rich.text import Text

from autotune.cli.views.console import EstimatesShown, PlainConsole
from autotune.cli.views.events import RunEvents
from autotune.plain_data import NONSENSE
from autotune.report.live_rows import LABEL, LiveState, rows
from autotune.report.run_lines import RunLines
from autotune.run.listener import Listener, Listeners, ProbeSteps

LEAST_WIDTH, LEAST_HEIGHT = 60, 12
"""A smaller terminal gets lines only."""
DRAWINGS_PER_S = 2
"""Each takes half a millisecond of a core that a probe may be using."""
EventListener = Callable[[dict[str, Any]], None]


class TerminalListener(RunLines):
    """Prints what happens: lines, and below them one that moves."""

    def __init__(self, console: PlainConsole) -> None:
        super().__init__(self._print)
        self._console = console
        self._estimates: EstimatesShown = EstimatesShown(console)

    def close(self) -> None:
        """Take the moving line away: no line is left half-way."""
        self._estimates.clear()

    def _print(self, text: str) -> None:
        self._estimates.clear()
        self._console.print_line(text)


class _Terminal:
    """A stream. Once its terminal is closed, what is written is lost: SIGHUP ends the run."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text."""
        self._while_open(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        """Send what was written."""
        self._while_open(self._stream.flush)

    def _while_open(self, call: Callable[[], object]) -> None:
        try:
            call()
        except OSError as error:
            if error.errno != errno.EIO:
                raise


class LiveConsole(PlainConsole):
    """The terminal behind stderr, to which one thread at a time prints. Its size is its own,
    whatever COLUMNS says: a row that is too long would be folded."""

    def __init__(self, **options: Any) -> None:
        sizes = ("COLUMNS", "LINES")
        environment = {name: text for name, text in os.environ.items() if name not in sizes}
        options["file"] = cast(IO[str], _Terminal(options.get("file") or sys.stderr))
        super().__init__(_environ=environment, **options)
        self.turn = threading.RLock()

    def print(self, *objects: Any, **options: Any) -> None:
        """Print, while no other thread does."""
        with self.turn:
            super().print(*objects, **options)

    def show_cursor(self, show: bool = True) -> bool:
        """Leave it shown: whatever ends the process, there is nothing to repair."""
        return False


class Panel(Live):
    """Rows that are drawn anew below each line that the console prints.

    Takes the events of a run; use it as a context manager.
    """

    def __init__(self, console: LiveConsole, state: LiveState) -> None:
        self._state = state
        self._rows: list[Text] = []
        self._drawn: tuple[int, list[int]] = (0, [])
        """Columns of the terminal when it was drawn last, and of each of its rows."""
        super().__init__(
            console=console,
            get_renderable=self._draw,
            refresh_per_second=DRAWINGS_PER_S,
            transient=True,
            redirect_stdout=False,
        )
        self._lock = console.turn

    def write(self, kind: str, **data: Any) -> None:
        """Take one event."""
        with self._lock:
            self._state.take(kind, data, time.monotonic())

    def _draw(self) -> Group:
        """Return its rows for the terminal as it is."""
        width, height = self.console.size
        self._rows = []
        if width >= LEAST_WIDTH and height >= LEAST_HEIGHT:
            with contextlib.suppress(*NONSENSE):  # of a worker of another version
                for name, text in rows(self._state, time.monotonic())[: height // 2]:
                    row = Text.assemble((f"{name:<{LABEL}}", "cyan"), text)
                    row.no_wrap, row.overflow = True, "ellipsis"
                    row.truncate(width - 1, overflow="ellipsis")
                    self._rows.append(row)
        return Group(*self._rows)

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Return what is printed, between the erasure of the rows and their next drawing."""
        erasure, width = self._erase_folds(), self.console.width
        self._drawn = width, [min(row.cell_len, width) for row in self._rows]
        return [erasure, *super().process_renderables(renderables)]

    def _erase_folds(self) -> Control:
        """Return what erases the lines that a narrower terminal has made of a row."""
        width, (before, columns) = self.console.width, self._drawn
        more = 0 if width >= before else sum(-(-each // width) - 1 for each in columns)
        return Control(*((ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1)) * more)


class LiveListener(RunEvents):
    """Feeds a panel with what happens, and how far probes are."""

    def stepping(self, steps: ProbeSteps) -> None:
        self._events.write("stepping", **dataclasses.asdict(steps))


class _LinesAbove(TerminalListener):
    """Lines that leave to the panel what it shows."""

    def estimated(self, done: int, of: int) -> None:
        """Leave it to the panel."""


@contextlib.contextmanager
def run_view(
    *, quiet: bool = False, verifying: str = "", method: str | None = None
) -> Iterator[Listener]:
    """Yield who hears of a run: a panel and lines, lines alone, or nobody.

    Args:
        verifying: what is launched, where that is all that is done.
        method: of the job, where it is known by now.
    """
    if quiet:
        yield Listener()
        return
    console = LiveConsole()
    if not has_room(console):
        with contextlib.closing(TerminalListener(console)) as listener:
            yield listener
        return
    state = LiveState(began=time.monotonic(), verifying=verifying, method=method)
    if verifying:
        state.doing, state.detail = "verifying", verifying
    with Panel(console, state) as panel:
        yield Listeners(LiveListener(panel), _LinesAbove(console))


@contextlib.contextmanager
def remote_view(lines: EventListener, *, quiet: bool) -> Iterator[EventListener]:
    """Yield who hears of the events of a service's run: a panel, or `lines` alone.

    Times begin when an event arrives: one who attaches later sees those of what follows.
    """
    console = LiveConsole()
    if quiet or not has_room(console):
        yield lines
        return
    state = LiveState(
        began=time.monotonic(), doing="waiting", detail="for the service", hears_steps=False
    )
    with Panel(console, state) as panel:

        def hear(event: dict[str, Any]) -> None:
            if event["kind"] == "line":
                console.print_line(event["data"]["text"])
            else:
                with contextlib.suppress(*NONSENSE):  # of a worker of another version
                    panel.write(event["kind"], **event["data"])

        yield hear


def has_room(console: Console) -> bool:
    """True if this is a terminal whose lines can be drawn anew, and is large enough."""
    able = console.file.isatty() and console.is_interactive and not os.environ.get("CI")
    return able and console.width >= LEAST_WIDTH and console.height >= LEAST_HEIGHT
