"""Traces that are as small as possible, and larger where their records cannot be scaled. Pure."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from autotune.estimate.protocol import Point, PointReply, ShapeWork
from autotune.estimate.records.layers import Irregular

_T = TypeVar("_T")
FEW_LAYERS, ALL_LAYERS, DIRECT = "few layers", "all layers", "direct"
EXTENTS = (FEW_LAYERS, ALL_LAYERS, DIRECT)
"""What is traced: few layers and few sizes; all layers; all sizes, where nothing can be scaled."""


class Retracing(ABC):
    """Estimates that trace more where the records of a smaller trace cannot be scaled."""

    def __init__(self) -> None:
        self.extent = EXTENTS[0]
        self._traced = False

    @abstractmethod
    def trace(self) -> None:
        """Trace all that is needed, as far as `extent` says. Irregular: that is not enough."""

    @abstractmethod
    def point(self, point: Point) -> PointReply:
        """Return what one point of the variant takes."""

    def hold_to(self, limit_bytes: int | None) -> None:  # noqa: B027
        """Answer for this limit from now on; nothing to do where a request has one alone."""

    def order(self, points: Sequence[Point]) -> list[int]:
        """Return the indices of the points, in the order in which they are best answered."""
        return list(range(len(points)))

    def shapes(self) -> list[ShapeWork]:
        """Return the work of each traced shape; none where every point has its own work."""
        return []

    def optimizer_work(self) -> dict[str, list[Any]]:
        """Return the work of an optimizer step, by optimizer; none where every point has its
        own."""
        return {}

    @abstractmethod
    def forget(self) -> None:
        """Drop what was made of earlier traces."""

    def attempt(self, answer: Callable[[], _T]) -> _T:
        """Return the answer, after ever more has been traced.

        Raises:
            Irregular: not even with everything traced.
        """
        while True:
            try:
                if not self._traced:
                    self.trace()
                    self._traced = True
                return answer()
            except Irregular:
                if self.extent == EXTENTS[-1]:
                    raise
                self.extent = EXTENTS[EXTENTS.index(self.extent) + 1]
                self._traced = False
                self.forget()
