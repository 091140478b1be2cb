"""The benchmark's samplers of Optuna, kept to feasible candidates, in a study in memory."""

from itertools import product

import optuna
import pytest
from optuna.distributions import CategoricalDistribution
from optuna.samplers._tpe.sampler import _split_trials
from optuna.trial import TrialState

from benchmarks.search.feasible_sampler import STARTUP_TRIALS, FeasibleSampler, inner_sampler

DISTRIBUTIONS = {
    "micro": CategoricalDistribution([1, 2, 4, 8]),
    "kernel": CategoricalDistribution(["a", "b", "c"]),
    "free": CategoricalDistribution([False, True]),
}
ALL = [
    dict(zip(DISTRIBUTIONS, v, strict=True)) for v in product([1, 2, 4, 8], "abc", [False, True])
]
FEASIBLE = [
    params
    for params in ALL
    if params["micro"] != 4 and not (params["kernel"] == "b" and params["free"])
]


def make_study(opening=(), seed=0, lean=None, name="tpe"):
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = FeasibleSampler(
        DISTRIBUTIONS, FEASIBLE, opening, lean or FEASIBLE, seed, inner_sampler(name, seed)
    )
    return optuna.create_study(sampler=sampler, direction="maximize")


def value_of(params):
    return 10.0 * params["micro"] + (5 if params["kernel"] == "c" else 0) + params["free"]


def run(study, count, outcome=lambda params: TrialState.COMPLETE):
    """Ask and tell; what was asked."""
    proposals = []
    for _ in range(count):
        trial = study.ask(DISTRIBUTIONS)
        state = outcome(trial.params)
        study.tell(trial, value_of(trial.params) if state == TrialState.COMPLETE else None, state)
        proposals.append(dict(trial.params))
    return proposals


@pytest.mark.parametrize("name", ["tpe", "gp", "random", "grid"])
@pytest.mark.parametrize("state", [TrialState.COMPLETE, TrialState.PRUNED])
def test_a_small_space_is_exhausted_exactly(name, state):
    study = make_study(name=name)
    proposals = run(study, len(FEASIBLE), lambda params: state)
    assert sorted(map(str, proposals)) == sorted(map(str, FEASIBLE))
    with pytest.raises(RuntimeError, match="every candidate has been probed"):
        study.ask(DISTRIBUTIONS)


def test_the_grid_is_walked_in_its_order():
    assert run(make_study(name="grid"), len(FEASIBLE)) == FEASIBLE


def test_running_trials_are_not_proposed_again():
    study = make_study()
    proposals = [dict(study.ask(DISTRIBUTIONS).params) for _ in range(len(FEASIBLE))]
    assert sorted(map(str, proposals)) == sorted(map(str, FEASIBLE))


def test_the_opening_comes_first_and_in_order():
    opening = [FEASIBLE[9], FEASIBLE[2], FEASIBLE[5]]
    assert run(make_study(opening), 3) == opening
    assert run(make_study(opening), 3, lambda params: TrialState.PRUNED) == opening


def test_an_opening_that_is_infeasible_is_passed_over():
    assert run(make_study([ALL[3], {"micro": 4, "kernel": "a", "free": False}]), 1) != [ALL[3]]


def test_the_leanest_come_next_until_something_fits():
    lean = FEASIBLE[::-1]
    study = make_study([FEASIBLE[4]], lean=lean)
    proposals = run(study, 4, lambda params: TrialState.PRUNED)
    assert proposals == [FEASIBLE[4], *lean[:3]]
    next_trial = study.ask(DISTRIBUTIONS)
    assert dict(next_trial.params) == lean[3]
    next_trial.set_constraint("memory", 5.0)
    study.tell(next_trial, 100.0)
    assert run(study, 1) == [lean[4]]
    later = run(study, 5)
    assert later != lean[5:10]


@pytest.mark.parametrize("state", [TrialState.COMPLETE, TrialState.PRUNED])
def test_what_is_left_out_is_never_proposed(state):
    study = make_study([FEASIBLE[0], FEASIBLE[1]])
    left_out_params = [FEASIBLE[0], *FEASIBLE[4:8]]
    study.sampler.leave_out(left_out_params)
    allowed_params = [params for params in FEASIBLE if params not in left_out_params]
    proposals = run(study, len(allowed_params), lambda params: state)
    assert proposals[0] == FEASIBLE[1]
    assert sorted(map(str, proposals)) == sorted(map(str, allowed_params))
    with pytest.raises(RuntimeError, match="every candidate has been probed"):
        study.ask(DISTRIBUTIONS)


def test_what_is_no_longer_left_out_is_proposed_again():
    study = make_study()
    study.sampler.leave_out(FEASIBLE[1:])
    assert run(study, 1) == [FEASIBLE[0]]
    study.sampler.leave_out(FEASIBLE[2:])
    assert run(study, 1) == [FEASIBLE[1]]


def test_the_same_seed_gives_the_same_sequence():
    first, repetition, third = (run(make_study(seed=seed), 15) for seed in (1, 1, 2))
    assert first == repetition
    assert first != third


def test_a_failed_trial_may_be_proposed_again():
    study = make_study([FEASIBLE[0]])
    states = [TrialState.FAIL, TrialState.FAIL, TrialState.COMPLETE, TrialState.COMPLETE]
    proposals = [run(study, 1, lambda params, s=state: s)[0] for state in states]
    assert proposals[:3] == [FEASIBLE[0]] * 3
    assert proposals[3] != FEASIBLE[0]


def test_once_it_has_seen_enough_it_looks_where_it_is_good():
    late_params = []
    for seed in range(8):
        study = make_study(seed=seed)
        proposals = run(study, 10)
        late_params += proposals[STARTUP_TRIALS + 1 :]
    share = sum(params["micro"] == 8 for params in late_params) / len(late_params)
    assert share > 1.3 * sum(params["micro"] == 8 for params in FEASIBLE) / len(FEASIBLE)


def test_tpe_puts_a_pruned_trial_with_a_violated_constraint_among_the_infeasible():
    """What the docstring of feasible_sampler.py says of Optuna."""
    study = make_study()
    violations = [None, 500.0, 3.0, -1.0]
    for violation in violations:
        trial = study.ask(DISTRIBUTIONS)
        trial.report(1e9, 0)
        if violation is not None:
            trial.set_constraint("memory", violation)
        study.tell(trial, state=TrialState.PRUNED)
    good = study.ask(DISTRIBUTIONS)
    study.tell(good, 1.0)
    trials = study.get_trials()

    def count_below(count):
        return {trial.number for trial in _split_trials(study, trials, count)[0]}

    # Completed first, then pruned ones that fit, then the violated in order of their violation.
    assert count_below(1) == {4}
    assert count_below(3) == {4, 0, 3}
    assert count_below(4) == {4, 0, 3, 2}
    assert count_below(5) == {4, 0, 3, 2, 1}
