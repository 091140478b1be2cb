"""Retracing: more is traced only where less did not do."""

import pytest

from autotune.estimate.records.layers import Irregular
from autotune.estimate.variants.retracing import EXTENTS, Retracing


class Traced(Retracing):
    """Notes what it is asked to do; some ways of tracing fail."""

    def __init__(self, failing: set[str]) -> None:
        super().__init__()
        self.failing, self.history = failing, []

    def trace(self) -> None:
        self.history.append(self.extent)
        if self.extent in self.failing:
            raise Irregular("unlike layers")

    def point(self, point):
        raise NotImplementedError

    def forget(self) -> None:
        self.history.append("forgotten")


def test_what_does_is_traced_once() -> None:
    retracing = Traced(set())
    assert [retracing.attempt(lambda: 1), retracing.attempt(lambda: 2)] == [1, 2]
    assert retracing.history == [EXTENTS[0]]


def test_where_a_trace_fails_more_is_traced() -> None:
    retracing = Traced({EXTENTS[0]})
    assert retracing.attempt(lambda: retracing.extent) == EXTENTS[1]
    assert retracing.history == [EXTENTS[0], "forgotten", EXTENTS[1]]


def test_where_an_answer_fails_more_is_traced_and_it_is_asked_again() -> None:
    retracing = Traced(set())

    def answer() -> str:
        if retracing.extent != EXTENTS[-1]:
            raise Irregular("unlike sizes")
        return "found"

    assert retracing.attempt(answer) == "found"
    assert [extent for extent in retracing.history if extent != "forgotten"] == list(EXTENTS)
    assert retracing.attempt(answer) == "found"
    assert retracing.history.count(EXTENTS[-1]) == 1


def test_when_everything_has_been_tried_it_is_told() -> None:
    with pytest.raises(Irregular):
        Traced(set(EXTENTS)).attempt(lambda: None)
