"""Replies of an earlier plan, in the order in which they were asked for."""

from autotune.plan.memory import Memory


def test_a_new_plan_keeps_its_replies_and_knows_none():
    memory = Memory()
    assert memory.next(2) is None
    assert memory.keep(["a", "b"]) == ["a", "b"]
    assert memory.next(1) is None
    memory.keep(["c"])
    assert memory.kept == ["a", "b", "c"]


def test_the_same_plan_gets_them_again_in_the_same_portions():
    memory = Memory(["a", "b", "c"])
    assert memory.next(2) == ["a", "b"]
    assert memory.next(0) == []
    assert memory.next(1) == ["c"]
    assert memory.kept == ["a", "b", "c"]
