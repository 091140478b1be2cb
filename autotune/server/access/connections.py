"""Connections of clients that say too little: a request that does not come is not waited for."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEADERS_S = 15.0
"""A connection has so long for the head of a request, from its start or the last answer on."""
BODY_S = 60.0
"""And so long for all of its body."""
SPARE = 200
"""Connections besides those that follow events."""


class Connection(H11Protocol):
    """uvicorn's connection, which waits for ever for the head of a request."""

    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait; beyond what is taken, end at once."""
        super().connection_made(transport)
        if self.limit_concurrency and len(self.connections) > self.limit_concurrency + SPARE:
            transport.abort()
            return
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Take what came; it counts as a request once its head is whole."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._wait_no_more()
        elif self._waiting is None:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._wait_no_more()
        super().connection_lost(exc)

    def _wait(self) -> None:
        self._waiting = self.loop.call_later(HEADERS_S, self._end)

    def _wait_no_more(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _end(self) -> None:
        self._waiting = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()
