"""Stopping a probe that cannot win."""

import optuna
from optuna.pruners import BasePruner
from optuna.trial import FrozenTrial, TrialState


class CannotWinPruner(BasePruner):
    """Prunes a trial whose last reported value is below the best stable trial's result.

    What a probe reports is the optimistic end of its interval; so a probe that is stopped would
    have had to beat its own upper bound to win.
    """

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        """Whether `trial` cannot win any more."""
        step = trial.last_step
        if step is None:
            return False
        best = best_stable_value(study)
        return best is not None and trial.intermediate_values[step] < best


def best_stable_value(study: optuna.Study) -> float | None:
    """Highest value of a completed trial that violates no constraint."""
    values = [
        trial.value
        for trial in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        if trial.value is not None and all(v <= 0 for v in trial.constraints.values())
    ]
    return max(values, default=None)
