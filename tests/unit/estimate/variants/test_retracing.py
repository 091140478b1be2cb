"""More is traced only where less did not do."""

import pytest

from autotune.estimate.records.layers import Irregular
from autotune.estimate.variants.retracing import WAYS, Persevering


class Traced(Persevering):
    """Notes what it is asked to do; some ways of tracing fail."""

    def __init__(self, failing: set[str]) -> None:
        super().__init__()
        self.failing, self.done = failing, []

    def trace(self) -> None:
        self.done.append(self.way)
        if self.way in self.failing:
            raise Irregular("unlike layers")

    def forget(self) -> None:
        self.done.append("forgotten")


def test_what_does_is_traced_once() -> None:
    path = Traced(set())
    assert [path.persevere(lambda: 1), path.persevere(lambda: 2)] == [1, 2]
    assert path.done == [WAYS[0]]


def test_where_a_trace_fails_more_is_traced() -> None:
    path = Traced({WAYS[0]})
    assert path.persevere(lambda: path.way) == WAYS[1]
    assert path.done == [WAYS[0], "forgotten", WAYS[1]]


def test_where_an_answer_fails_more_is_traced_and_it_is_asked_again() -> None:
    path = Traced(set())

    def answer() -> str:
        if path.way != WAYS[-1]:
            raise Irregular("unlike sizes")
        return "found"

    assert path.persevere(answer) == "found"
    assert [one for one in path.done if one != "forgotten"] == list(WAYS)
    assert path.persevere(answer) == "found"
    assert path.done.count(WAYS[-1]) == 1


def test_when_everything_has_been_tried_it_is_told() -> None:
    with pytest.raises(Irregular):
        Traced(set(WAYS)).persevere(lambda: None)
