"""Which running probes are stopped, in a real study that is kept in memory."""

import optuna
from optuna.distributions import FloatDistribution

from autotune.search.study import CannotWinPruner, best_stable_value

FREE = {"knob": FloatDistribution(0.0, 1.0)}
"""Wide enough that no two trials have the same parameters."""


def make_study():
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.RandomSampler(seed=0)
    return optuna.create_study(direction="maximize", sampler=sampler, pruner=CannotWinPruner())


def reported(study, value):
    trial = study.ask(FREE)
    trial.report(value, 1)
    return trial


def test_a_probe_below_the_best_stable_result_is_stopped():
    study = make_study()
    assert best_stable_value(study) is None
    assert not reported(study, 1.0).should_prune()
    study.tell(study.ask(FREE), 100.0)
    assert reported(study, 99.9).should_prune()
    assert not reported(study, 100.0).should_prune()
    assert not study.ask(FREE).should_prune()
    recovering = reported(study, 50.0)
    recovering.report(150.0, 2)
    assert not recovering.should_prune()


def test_a_result_over_the_headroom_stops_nobody():
    study = make_study()
    next_trial = study.ask(FREE)
    next_trial.set_constraint("memory", 1.0)
    study.tell(next_trial, 1000.0)
    fits = study.ask(FREE)
    fits.set_constraint("memory", -5.0)
    study.tell(fits, 10.0)
    assert best_stable_value(study) == 10.0
    assert not reported(study, 11.0).should_prune()
