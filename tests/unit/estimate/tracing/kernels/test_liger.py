"""What is written down as often as it is done, though it is run once."""

import pytest

from autotune.estimate.records.events import ALLOCATE, FREE, LOGITS, Work
from autotune.estimate.tracing.kernels.liger import repeated
from autotune.estimate.tracing.tracer import Tracer

WORK = Work(
    operator="aten::mm", kind="matmul", dtype="float32", dims=(), flops=1, moved_bytes=1, region=0
)


def test_a_repetition_has_storages_of_its_own_and_as_much_work():
    tracer = Tracer(vocabulary=None, cuda=None)
    tracer.works = [WORK]
    with repeated(tracer, 3):
        tracer.free(tracer.allocate(100, LOGITS, "mm", 0))
        tracer.works.append(WORK)
    assert [event[0] for event in tracer.events] == [ALLOCATE, FREE] * 3
    made = [event for event in tracer.events if event[0] == ALLOCATE]
    assert {event[2:] for event in made} == {(100, LOGITS, "mm", 0)}
    assert len({event[1] for event in made}) == 3
    assert [event[1] for event in tracer.events[::2]] == [event[1] for event in tracer.events[1::2]]
    assert len(tracer.works) == 1 + 3


def test_what_is_done_once_may_leave_something():
    tracer = Tracer(vocabulary=None, cuda=None)
    with repeated(tracer, 1):
        tracer.allocate(100, LOGITS, "mm", 0)
    assert len(tracer.events) == 1


@pytest.mark.parametrize("leaves", [True, False])
def test_what_leaves_or_takes_something_cannot_be_repeated(leaves):
    tracer = Tracer(vocabulary=None, cuda=None)
    before = tracer.allocate(100, LOGITS, "mm", 0)
    with pytest.raises(ValueError, match="leaves storages behind"), repeated(tracer, 2):
        if leaves:
            tracer.allocate(100, LOGITS, "mm", 0)
        else:
            tracer.free(before)
