"""A draft while its traces run: what is looked at first is shown, and kept where the user stops."""

from dataclasses import dataclass, replace
from typing import Any

import pytest

from autotune.plan.drafting import drafted
from autotune.plan.estimator import Estimator
from autotune.plan.progress import Progress
from autotune.process.server import ChildServer
from autotune.space.bind import bind
from autotune.space.definition import load_definition
from tests.unit.builders import GIB, make_estimate, make_facts, make_job


class Heard(Progress):
    def __init__(self) -> None:
        self.shown: list[int] = []

    def improved(self, best: Any, space: Any, devices: int) -> None:
        self.shown.append(best.candidate.micro_batch)


@dataclass(frozen=True, kw_only=True)
class Stopped(Estimator):
    """An estimator whose user presses Ctrl-C while the variants are traced, or earlier."""

    early: bool = False

    def estimates(self, candidates):
        if self.early:
            raise KeyboardInterrupt
        return {one.key: replace(make_estimate(GIB), tokens_per_s=10.0) for one in candidates}

    def replies(self, tasks, known=None):
        raise KeyboardInterrupt


def stopped(tmp_path, job, *, early=False):
    facts, heard = make_facts("cuda"), Heard()
    facts = replace(facts, model=replace(facts.model, path=str(tmp_path)))
    estimator = Stopped(
        job=job,
        facts=facts,
        limit=40 * GIB,
        server=ChildServer(tmp_path / "log"),
        folder=tmp_path,
        rows=tmp_path,
        progress=heard,
        early=early,
    )
    space = bind(load_definition(job.method), job, facts)
    return lambda: drafted(space, estimator), heard


def generating():
    return make_job(method="grpo", reward_funcs=["rewards.short"], global_batch_size=16)


def test_what_was_looked_at_first_is_kept_where_the_user_stops(tmp_path):
    draft, heard = stopped(tmp_path, generating())
    found = draft()
    assert heard.shown == [1]
    assert found.stopped and found.left_out > 0
    checkpointing = {one["gradient_checkpointing"] for one in found.space.candidates}
    assert checkpointing == {False, True} and len(found.estimates) == 2


@pytest.mark.parametrize("early", [False, True])
def test_where_nothing_is_known_the_user_has_stopped_the_plan(tmp_path, early):
    job = generating() if early else make_job(global_batch_size=16)
    draft, heard = stopped(tmp_path, job, early=early)
    with pytest.raises(KeyboardInterrupt):
        draft()
    assert not heard.shown
