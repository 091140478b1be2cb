"""Traces of several groups of candidates: beside each other, unless engines are to be traced; and
those of an earlier plan, given again.
"""

from dataclasses import dataclass, field, replace

import pytest

from autotune.plan import estimator as estimator_module
from autotune.plan.children import untraced
from autotune.plan.estimator import Estimator
from autotune.plan.least_memory import LOWER_BOUND
from autotune.plan.trace_choice import Effort
from autotune.process.child_server import ChildServer
from tests.unit.builders import GIB, make_facts, make_job, make_space


@dataclass(frozen=True, kw_only=True)
class Counted(Estimator):
    """An estimator that traces nothing, and counts how many tasks are asked for at a time."""

    calls: list[int] = field(default_factory=list)

    def replies(self, tasks, report=None):
        self.calls.append(len(tasks))
        return [untraced("not traced here") for _ in tasks]


def counted(tmp_path, job, parameters=1000, effort=None):
    facts = make_facts("cuda")
    model = replace(facts.model, path=str(tmp_path), parameters=parameters)
    facts = replace(facts, model=model)
    estimator = Counted(
        job=job,
        facts=facts,
        limit=40 * GIB,
        server=ChildServer(tmp_path / "log"),
        folder=tmp_path,
        rows=tmp_path,
        effort=effort or Effort(first=2),
    )
    return estimator, make_space(job, facts).candidates


@pytest.mark.parametrize(
    ("devices", "effort", "calls"),
    [(1, Effort(first=2), 1), (2, Effort(first=2), 2), (2, Effort(first=0), 1)],
)
def test_an_effort_is_for_the_engines_of_each_group(tmp_path, devices, effort, calls):
    estimator, candidates = counted(tmp_path, make_job(devices={"count": devices}), effort=effort)
    some, others = candidates[:40], candidates[-40:]
    found = estimator.estimates_together([(estimator, some), (estimator, others)])
    assert [set(estimates) for estimates in found] == [
        {c.key for c in some},
        {c.key for c in others},
    ]
    assert len(estimator.calls) == calls


def test_what_cannot_fit_is_estimated_without_a_trace(tmp_path):
    estimator, candidates = counted(tmp_path, make_job(), parameters=100 * 10**9)
    estimates = estimator.estimates(candidates[:20])
    assert estimator.calls == [0]
    assert {estimate.method for estimate in estimates.values()} == {LOWER_BOUND}


def test_the_same_plan_gets_its_replies_again_in_the_same_portions(tmp_path, monkeypatch):
    asked = []

    def answered(tasks, *_, **__):
        asked.append(len(tasks))
        return [untraced(str(number)) for number in range(len(tasks))]

    monkeypatch.setattr(estimator_module, "answered", answered)
    facts = replace(make_facts("cuda"), model=replace(make_facts().model, path=str(tmp_path)))
    new = Estimator(
        job=make_job(),
        facts=facts,
        limit=40 * GIB,
        server=ChildServer(tmp_path / "log"),
        folder=tmp_path,
        rows=tmp_path,
    )
    tasks = new.tasks(make_space(make_job(), facts).candidates)
    portions = [new.replies(tasks[:2]), new.replies([]), new.replies(tasks[2:3])]
    assert asked == [2, 1] and new.kept == [*portions[0], *portions[2]]
    again, told = replace(new, remembered=iter(list(new.kept))), []
    portions_again = [again.replies(some, told.append) for some in (tasks[:2], [], tasks[2:3])]
    assert portions_again == portions and asked == [2, 1]
    assert told == [dict(enumerate(portions[0])), dict(enumerate(portions[2]))]
