"""A run that a service does, seen as one that is done here."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.markup import escape

from autotune.cli.views.live.panel import LiveConsole, Panel, has_room
from autotune.cli.views.live.state import LiveState

Event = Mapping[str, Any]
"""As the service sends it: `utc`, `kind` and `data`."""
Hear = Callable[[Event], None]


@contextlib.contextmanager
def remote_view(lines: Hear, *, quiet: bool) -> Iterator[Hear]:
    """Who hears of the events of a service's run: a panel, or `lines` alone, which says those."""
    console = LiveConsole()
    if quiet or not has_room(console):
        yield lines
        return
    state = LiveState(began=time.monotonic(), doing="waiting", detail="for the service")
    clock = _Clock()
    with Panel(console, state) as panel:

        def hear(event: Event) -> None:
            if event["kind"] == "line":
                console.print(escape(event["data"]["text"]), highlight=False, soft_wrap=True)
            else:
                panel.take(event["kind"], event["data"], clock.age_of(event["utc"]))

        yield hear


class _Clock:
    """How long ago events were that come late, whatever time it is at the service: the one that
    came soonest after it happened is held to be new."""

    def __init__(self) -> None:
        self._soonest = float("inf")

    def age_of(self, utc: float) -> float:
        """Seconds since an event that has come just now."""
        later = time.monotonic() - utc
        self._soonest = min(self._soonest, later)
        return later - self._soonest
