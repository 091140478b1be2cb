"""What is in flight is proposed by no second trial, and is believed, but never the best."""

import optuna
import pytest

from autotune.search.sampler.expected import key_of
from autotune.search.study import Study
from tests.unit.builders import make_job, make_sampler, make_space


@pytest.mark.parametrize("count", [1, 2, 4])
def test_no_candidate_is_in_flight_twice(tmp_path, count):
    space = make_space(make_job())
    sampler = make_sampler(space)
    study = Study(space, tmp_path / "study.db", "a", allowed_bytes=None, sampler=sampler)
    asked = [study.ask()[1].key for _ in range(count + 1)]
    assert len(set(asked)) == count + 1


def test_what_is_in_flight_is_never_the_best(tmp_path):
    space = make_space(make_job())
    sampler = make_sampler(space)
    study = Study(space, tmp_path / "study.db", "a", allowed_bytes=None, sampler=sampler)
    study.ask()
    study.ask()
    beliefs = sampler.beliefs(study._study)
    assert beliefs.best is None
    (first, _) = study._study.get_trials(states=(optuna.trial.TrialState.RUNNING,))
    index = sampler._index[key_of(first.params)]
    assert beliefs.sd[index] < max(beliefs.sd)
