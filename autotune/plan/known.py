"""What is known of a plan while its traces run: it can be looked at, or stopped, at any time."""

import threading
from collections.abc import Callable, Mapping

from autotune.estimate.protocol import EstimateReply


class Known:
    """Replies so far, by the index of their task; children report from several threads.

    Args:
        improved: called after each change.
    """

    def __init__(self, improved: Callable[[], None] | None = None) -> None:
        self._improved, self._lock = improved, threading.Lock()
        self._replies: dict[int, EstimateReply] = {}

    @property
    def replies(self) -> Mapping[int, EstimateReply]:
        """The best reply to each task that has one."""
        return self._replies

    def add(self, replies: Mapping[int, EstimateReply]) -> None:
        """Note replies, in place of earlier ones of the same tasks."""
        with self._lock:
            self._replies = {**self._replies, **replies}
            if self._improved is not None:
                self._improved()
