"""The estimate-guided sampler: in real Optuna studies, and by Optuna's own contract tests."""

import math
from itertools import product

import optuna
import pytest
from optuna.distributions import CategoricalDistribution
from optuna.testing.pytest_samplers import BasicSamplerTestCase, RelativeSamplerTestCase
from optuna.trial import TrialState

from autotune.estimate.residual import Residual
from autotune.search.sampler.expected import Expected, Reading
from autotune.search.sampler.sampler import EstimateGuidedSampler

DISTRIBUTIONS = {
    "micro": CategoricalDistribution([1, 2, 4, 8]),
    "kernel": CategoricalDistribution(["a", "b", "c"]),
    "save": CategoricalDistribution([False, True]),
}
CANDIDATES = [
    dict(zip(DISTRIBUTIONS, v, strict=True)) for v in product([1, 2, 4, 8], "abc", [False, True])
]
ALLOWED = 1000.0


def speed_of(params):
    """Kernel c is expected to be the fastest; really b is, by far."""
    return (100 + 20 * math.log2(params["micro"])) * {"a": 1.0, "b": 1.1, "c": 1.3}[
        params["kernel"]
    ]


def truth(params):
    return speed_of(params) * {"a": 1.0, "b": 1.6, "c": 0.8}[params["kernel"]]


def peak_of(params):
    return 100.0 * params["micro"] * (1.0 if params["save"] else 1.5)


def make_sampler(candidates=CANDIDATES, *, expected=None, **options):
    if expected is None:
        expected = [
            Expected(
                speed=speed_of(params) * (0.8 if params["save"] else 1.0),
                peak_bytes=peak_of(params),
            )
            for params in candidates
        ]
    options = {"allowed_bytes": ALLOWED, "residual": Residual(relative_sigma=0.02), **options}
    return EstimateGuidedSampler(DISTRIBUTIONS, candidates, expected, **options)


def make_study(sampler=None, direction="maximize"):
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(sampler=sampler or make_sampler(), direction=direction)


def ask(study):
    trial = study.ask(DISTRIBUTIONS)
    return trial, dict(trial.params)


def tell(study, trial, *, peak=None, value=None):
    params = dict(trial.params)
    excess = (peak_of(params) if peak is None else peak) - ALLOWED
    trial.set_constraint("memory", excess)
    if excess > 0:
        study.tell(trial, state=TrialState.PRUNED)
    else:
        study.tell(trial, truth(params) if value is None else value)


def test_the_first_is_the_fastest_expected_that_fits():
    trial, params = ask(make_study())
    assert params == {"micro": 4, "kernel": "c", "save": False}


def test_measurements_correct_what_was_expected_of_like_candidates():
    study = make_study()
    proposals = []
    for _ in range(5):
        trial, params = ask(study)
        tell(study, trial)
        proposals.append(params)
    best = max((c for c in CANDIDATES if peak_of(c) <= ALLOWED), key=truth)
    assert best in proposals
    assert any(params["kernel"] == "b" for params in proposals[1:3])


def test_what_fits_for_certain_is_preferred_to_what_may_not():
    expected = [
        Expected(speed=120.0, peak_bytes=995.0),
        Expected(speed=110.0, peak_bytes=500.0),
    ]
    sampler = make_sampler(CANDIDATES[:2], expected=expected)
    assert ask(make_study(sampler))[1] == CANDIDATES[1]


def test_an_out_of_memory_moves_what_is_expected_of_all():
    study = make_study(make_sampler(residual=Residual(relative_sigma=0.02, bias_sigma=0.5)))
    fits_before = study.sampler.beliefs(study).fits
    trial, params = ask(study)
    tell(study, trial, peak=1.8 * ALLOWED)
    fits_after = study.sampler.beliefs(study).fits
    assert all(fits_after <= fits_before + 1e-3)
    assert fits_after[CANDIDATES.index({"micro": 4, "kernel": "a", "save": False})] < 0.5


def test_an_out_of_memory_that_was_expected_says_nothing_new():
    sampler = make_sampler([CANDIDATES[-1]], expected=[Expected(speed=1.0, peak_bytes=5000.0)])
    study = make_study(sampler)
    trial, _ = ask(study)
    tell(study, trial, peak=1200.0)
    assert sampler.beliefs(study).fits[0] < 1e-6


def test_a_value_that_only_fails_is_doubted_and_one_that_runs_is_not():
    study = make_study()
    for params in (
        {"micro": 1, "kernel": "b", "save": False},
        {"micro": 2, "kernel": "b", "save": False},
    ):
        study.enqueue_trial(params)
        trial, _ = ask(study)
        trial.set_constraint("runs", 1.0)
        study.tell(trial, state=TrialState.PRUNED)
    study.enqueue_trial({"micro": 1, "kernel": "a", "save": False})
    tell(study, ask(study)[0])
    runs = dict(zip(map(str, CANDIDATES), study.sampler.beliefs(study).runs, strict=True))
    assert runs[str({"micro": 4, "kernel": "b", "save": True})] == pytest.approx(1 / 3)
    assert runs[str({"micro": 4, "kernel": "a", "save": True})] == 1.0
    assert ask(study)[1]["kernel"] == "c"


def test_a_stopped_probe_is_a_reading_too():
    study = make_study()
    trial, params = ask(study)
    trial.report(10.0, 1)
    study.tell(trial, state=TrialState.PRUNED)
    beliefs = study.sampler.beliefs(study)
    assert beliefs.best is None
    assert math.exp(beliefs.mean[CANDIDATES.index(params)]) == pytest.approx(10.0, rel=0.1)


def test_every_candidate_is_proposed_once_and_then_none():
    study = make_study()
    proposals = []
    for _ in CANDIDATES:
        trial, params = ask(study)
        tell(study, trial)
        proposals.append(params)
    assert sorted(map(str, proposals)) == sorted(map(str, CANDIDATES))
    assert study.sampler.gain(study) == 0.0
    with pytest.raises(RuntimeError, match="every candidate has been probed"):
        ask(study)


def test_what_is_left_out_is_not_proposed_until_it_is_let_in_again():
    study = make_study()
    study.sampler.leave_out([params for params in CANDIDATES if params["kernel"] == "c"])
    assert ask(study)[1]["kernel"] == "b"
    study.sampler.leave_out([])
    assert ask(study)[1]["kernel"] == "c"


def test_the_same_trials_give_the_same_proposals():
    sequences = []
    for _ in range(2):
        study = make_study()
        sequences.append([])
        for _ in range(6):
            trial, params = ask(study)
            tell(study, trial)
            sequences[-1].append(params)
    assert sequences[0] == sequences[1]


def test_times_are_minimised_as_speeds_are_maximised():
    study = make_study(direction="minimize")
    proposals = []
    for _ in range(5):
        trial, params = ask(study)
        tell(study, trial, value=1000 / truth(params))
        proposals.append(params)
    assert max((c for c in CANDIDATES if peak_of(c) <= ALLOWED), key=truth) in proposals


def test_without_estimates_it_still_learns_which_values_are_good():
    plain = [Expected()] * len(CANDIDATES)
    speeds = []
    study = make_study(make_sampler(expected=plain, allowed_bytes=None))
    for _ in range(10):
        trial, params = ask(study)
        study.tell(trial, truth(params))
        speeds.append(truth(params))
    assert max(speeds) >= 0.98 * max(map(truth, CANDIDATES))


def test_without_estimates_what_is_like_one_that_ran_out_of_memory_is_tried_late():
    """Six of 24 fit here: the smallest micro-batches."""
    study = make_study(make_sampler(expected=[Expected()] * len(CANDIDATES)))
    fits = []
    while sum(fits) < 6:
        trial, params = ask(study)
        fits.append(params["micro"] == 1)
        tell(study, trial, peak=100.0 if fits[-1] else 1200.0)
    assert fits.count(False) <= 8, "by chance it is 15, and was 17 where all were believed alike"


def test_earlier_readings_order_the_first_guess():
    history = [
        Reading(
            params={"micro": 1, "kernel": kernel, "save": False},
            expected=Expected(speed=100.0),
            log_speed=math.log(100.0 * factor),
            sd=0.05,
        )
        for kernel, factor in (("a", 1.0), ("b", 1.6), ("c", 0.8))
    ]
    assert ask(make_study(make_sampler(history=history)))[1]["kernel"] == "b"
    vague = [Reading(**{**vars(reading), "sd": 5.0}) for reading in history]
    assert ask(make_study(make_sampler(history=vague)))[1]["kernel"] == "c"


def test_as_many_expectations_as_candidates():
    with pytest.raises(ValueError, match="24 candidates, but 1 are expected"):
        make_sampler(expected=[Expected()])


def test_equal_numbers_are_the_same_candidate_whatever_their_type():
    space = {"x": optuna.distributions.FloatDistribution(0, 8)}
    sampler = EstimateGuidedSampler(space, [{"x": n} for n in (1, 2, 4)])
    study = make_study(sampler)
    proposals = []
    for _ in range(3):
        trial = study.ask(space)
        study.tell(trial, trial.params["x"])
        proposals.append(trial.params["x"])
    assert sorted(proposals) == [1, 2, 4]


def test_a_candidate_that_failed_once_is_not_the_best_any_more():
    study = make_study()
    first, params = ask(study)
    tell(study, first)
    assert study.sampler.beliefs(study).best is not None
    study.enqueue_trial(params)
    next_params, _ = ask(study)
    tell(study, next_params, peak=2 * ALLOWED)
    assert study.sampler.beliefs(study).best is None


# -- in studies that others make


def objective(trial):
    params = {
        name: trial.suggest_categorical(name, knob.choices) for name, knob in DISTRIBUTIONS.items()
    }
    trial.suggest_float("lr", 1e-5, 1e-3)  # nothing to do with the candidates
    return truth(params)


def proposed_params(study):
    return [tuple(trial.params[name] for name in DISTRIBUTIONS) for trial in study.trials]


def test_parameters_outside_the_candidates_do_not_hide_whose_trial_it_is():
    study = make_study()
    study.optimize(objective, n_trials=6)
    assert len(set(proposed_params(study))) == 6
    assert study.best_trial.params["kernel"] == "b"


def test_optimize_ends_when_every_candidate_was_proposed():
    study = make_study(make_sampler(CANDIDATES[:5]))
    study.optimize(objective, n_trials=100)
    assert len(study.trials) == len(set(proposed_params(study))) == 5
    assert {trial.state for trial in study.trials} == {TrialState.COMPLETE}


def test_threads_get_different_candidates():
    study = make_study()
    study.optimize(objective, n_trials=20, n_jobs=4)
    assert len(set(proposed_params(study))) == 20


@pytest.mark.parametrize("value", [math.inf, 0.0, -1.0])
def test_a_value_that_is_no_speed_teaches_nothing_of_speed(value):
    study = make_study()
    trial, _ = ask(study)
    study.tell(trial, value)
    _, params = ask(study)
    assert math.isfinite(study.sampler.gain(study))
    assert params["kernel"] == "c"


@pytest.mark.parametrize("speed", [math.nan, math.inf, 0.0, -5.0])
def test_an_expectation_that_no_device_can_meet_is_refused(speed):
    expected = [Expected(speed=speed)] * len(CANDIDATES)
    with pytest.raises(ValueError, match="speed"):
        make_sampler(expected=expected)


def test_a_stopped_probe_that_fits_runs():
    study = make_study()
    trial, params = ask(study)
    trial.report(50.0, 1)
    trial.set_constraint("memory", -10.0)
    study.tell(trial, state=TrialState.PRUNED)
    runs = study.sampler.beliefs(study).runs
    assert runs[CANDIDATES.index(params)] == 1.0


def test_a_value_that_is_hardly_known_moves_less():
    def belief(error):
        study = make_study()
        trial, params = ask(study)
        trial.set_user_attr("relative_error", error)
        study.tell(trial, 3 * truth(params))
        return study.sampler.beliefs(study).mean[CANDIDATES.index(params)]

    assert belief(0.5) < belief(0.01) - 0.05


class TestContract(BasicSamplerTestCase, RelativeSamplerTestCase):
    """Optuna's own tests of a sampler, for spaces that are not ours."""

    @pytest.fixture
    def sampler(self):
        return EstimateGuidedSampler


class TestContractWithCandidates(BasicSamplerTestCase):
    """The same where it has candidates, and a study asks for something else."""

    @pytest.fixture
    def sampler(self):
        return lambda: EstimateGuidedSampler(DISTRIBUTIONS, CANDIDATES)
