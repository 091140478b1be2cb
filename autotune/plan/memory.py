"""Replies to the traces of a plan, in the order in which they are asked for."""

from collections.abc import Sequence

from autotune.estimate.protocol import EstimateReply


class Memory:
    """Replies of an earlier plan, given again; or those of a new one, kept.

    The same plan asks for the same traces in the same order.

    Args:
        remembered: all replies of the earlier plan; None: it is a new one.

    Attributes:
        kept: the replies so far.
    """

    def __init__(self, remembered: Sequence[EstimateReply] | None = None) -> None:
        self._remembered = remembered
        self.kept: list[EstimateReply] = []

    def next(self, count: int) -> list[EstimateReply] | None:
        """Return the next replies; None: they are not known."""
        if self._remembered is None:
            return None
        begin = len(self.kept)
        return self.keep(self._remembered[begin : begin + count])

    def keep(self, replies: Sequence[EstimateReply]) -> list[EstimateReply]:
        """Note replies and hand them on."""
        self.kept += replies
        return list(replies)
