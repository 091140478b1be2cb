"""A run that a service does, seen as one that is done here."""

import contextlib
import time
from collections.abc import Callable, Iterator

from autotune.cli.views.live.panel import LiveConsole, Panel, has_room
from autotune.cli.views.live.state import LiveState
from autotune.client import Event
from autotune.plain_data import NONSENSE

EventListener = Callable[[Event], None]


@contextlib.contextmanager
def remote_view(lines: EventListener, *, quiet: bool) -> Iterator[EventListener]:
    """Who hears of the events of a service's run: a panel, or `lines` alone, which says those.

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

        def hear(event: Event) -> None:
            if event["kind"] == "line":
                console.print_line(event["data"]["text"])
            else:
                with contextlib.suppress(*NONSENSE):  # of a worker of another version
                    panel.write(event["kind"], **event["data"])

        yield hear
