"""Retracing: more is traced only where less did not do."""

import pytest

from autotune.estimate.records.layers import Irregular
from autotune.estimate.variants.retracing import WAYS, Retracing


class Traced(Retracing):
    """Notes what it is asked to do; some ways of tracing fail."""

    def __init__(self, failing: set[str]) -> None:
        super().__init__()
        self.failing, self.history = failing, []

    def trace(self) -> None:
        self.history.append(self.way)
        if self.way in self.failing:
            raise Irregular("unlike layers")

    def point(self, point):
        raise NotImplementedError

    def forget(self) -> None:
        self.history.append("forgotten")


def test_what_does_is_traced_once() -> None:
    retracing = Traced(set())
    assert [retracing.attempt(lambda: 1), retracing.attempt(lambda: 2)] == [1, 2]
    assert retracing.history == [WAYS[0]]


def test_where_a_trace_fails_more_is_traced() -> None:
    retracing = Traced({WAYS[0]})
    assert retracing.attempt(lambda: retracing.way) == WAYS[1]
    assert retracing.history == [WAYS[0], "forgotten", WAYS[1]]


def test_where_an_answer_fails_more_is_traced_and_it_is_asked_again() -> None:
    retracing = Traced(set())

    def answer() -> str:
        if retracing.way != WAYS[-1]:
            raise Irregular("unlike sizes")
        return "found"

    assert retracing.attempt(answer) == "found"
    assert [way for way in retracing.history if way != "forgotten"] == list(WAYS)
    assert retracing.attempt(answer) == "found"
    assert retracing.history.count(WAYS[-1]) == 1


def test_when_everything_has_been_tried_it_is_told() -> None:
    with pytest.raises(Irregular):
        Traced(set(WAYS)).attempt(lambda: None)
