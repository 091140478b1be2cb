"""The rows of a run below what it prints, in a terminal with room for them; else lines alone."""

import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Iterator
from typing import IO, Any, cast

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderResult
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType
from rich.text import Text

from autotune.cli.views.console import PlainConsole
from autotune.cli.views.events import RunEvents
from autotune.cli.views.live.rows import LABEL, rows
from autotune.cli.views.live.state import LiveState
from autotune.cli.views.live.writer import Writer
from autotune.cli.views.terminal import TerminalListener
from autotune.run.listener import Listener, ProbeSteps

LEAST_WIDTH, LEAST_HEIGHT = 60, 12
"""A smaller terminal gets lines only."""
REDRAW_S = 0.5
"""Between two drawings: each takes half a millisecond of a core that a probe may be using."""


class LiveConsole(PlainConsole):
    """The terminal behind stderr, to which one thread at a time prints. Its size is its own,
    whatever COLUMNS says: a row that is too long would be folded."""

    def __init__(self, **options: Any) -> None:
        sizes = ("COLUMNS", "LINES")
        environment = {name: text for name, text in os.environ.items() if name not in sizes}
        super().__init__(stderr=True, _environ=environment, **options)
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
        self._turn, self._over, self._state = console.turn, threading.Event(), state
        self._drawing: tuple[int, list[int]] = (0, [])
        """Columns of the terminal when it was drawn last, and of each of its rows."""
        self._clock = threading.Thread(target=self._redraw, daemon=True)
        super().__init__(
            console=console,
            get_renderable=lambda: _Rows(self),
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
        )

    def write(self, kind: str, **data: Any) -> None:
        """Take one event."""
        with self._turn:
            self._state.take(kind, data, time.monotonic())

    def start(self, refresh: bool = False) -> None:
        """Draw it from now on."""
        self._terminal = self.console.file
        self._writer = Writer(self._terminal)
        self.console.file = cast(IO[str], self._writer)
        super().start(refresh=True)
        self._clock.start()

    def stop(self) -> None:
        """Take it away."""
        self._over.set()
        if self._clock.is_alive():
            self._clock.join()
        super().stop()
        self._writer.close()
        self.console.file = self._terminal

    def refresh(self) -> None:
        """Draw it as it is now."""
        with self._turn:
            super().refresh()

    def _redraw(self) -> None:
        while not self._over.wait(REDRAW_S):
            if not self._writer.is_behind:
                self.refresh()

    def draw(self, width: int, height: int) -> list[Text]:
        """Return its rows for a terminal of that size; they are what is seen next."""
        shown = []
        if width >= LEAST_WIDTH and height >= LEAST_HEIGHT:
            found = rows(self._state, time.monotonic(), width - 1)
            for name, text in found[: height // 2]:
                shown.append(Text.assemble((f"{name:<{LABEL}}", "cyan"), text, no_wrap=True))
        self._drawing = width, [row.cell_len for row in shown]
        return shown

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Return what is printed, between the erasure of the rows and their next drawing."""
        return [self._erase_folds(), *super().process_renderables(renderables)]

    def _erase_folds(self) -> Control:
        """Erases what a narrower terminal has folded: it made several lines of a row."""
        width, drawing = self.console.width, self._drawing
        if width >= drawing[0]:
            return Control()
        more = sum(-(-columns // width) - 1 for columns in drawing[1])
        return Control(*((ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1)) * more)


class _Rows:
    """Draws a panel for the terminal as it is."""

    def __init__(self, panel: Panel) -> None:
        self._panel = panel

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self._panel.draw(console.width, console.height)


class LiveListener(RunEvents):
    """Feeds a panel with what happens, and how far probes are."""

    def stepping(self, steps: ProbeSteps) -> None:
        self._events.write("stepping", **dataclasses.asdict(steps))
        super().stepping(steps)


class _LinesAbove(TerminalListener):
    """Lines that leave to the panel what it shows."""

    def estimated(self, done: int, of: int) -> None:
        """The panel shows it."""


@contextlib.contextmanager
def run_view(
    *, quiet: bool = False, verifying: str = "", method: str | None = None
) -> Iterator[Listener]:
    """Who hears of a run: a panel and lines, lines alone, or nobody.

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
        yield LiveListener(panel, _LinesAbove(console))


def has_room(console: Console) -> bool:
    """True if this is a terminal whose lines can be drawn anew, and is large enough."""
    able = console.file.isatty() and console.is_interactive and not os.environ.get("CI")
    return able and console.width >= LEAST_WIDTH and console.height >= LEAST_HEIGHT
