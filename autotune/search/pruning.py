"""The pruner of probes that cannot win."""

from statistics import fmean

import optuna
from optuna.pruners import BasePruner
from optuna.trial import FrozenTrial, TrialState


class CannotWinPruner(BasePruner):
    """A pruner of trials whose last reported value is below the best stable trial's result.

    What a probe reports is the optimistic end of its interval; so a probe that is stopped would
    have had to beat its own upper bound to win.
    """

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        """True if `trial` cannot win any more."""
        step = trial.last_step
        if step is None:
            return False
        best = best_stable_value(study)
        return best is not None and trial.intermediate_values[step] < best


def best_stable_value(study: optuna.Study) -> float | None:
    """Return the mean value of the best parameters whose trials all violate no constraint."""
    values: dict[str, list[float]] = {}
    excluded_keys = set()
    states = (TrialState.COMPLETE, TrialState.PRUNED)
    for trial in study.get_trials(deepcopy=False, states=states):
        key = repr(sorted(trial.params.items()))
        if any(v > 0 for v in trial.constraints.values()):
            excluded_keys.add(key)
        elif trial.state == TrialState.COMPLETE and trial.value is not None:
            values.setdefault(key, []).append(trial.value)
    return max(
        (fmean(readings) for key, readings in values.items() if key not in excluded_keys),
        default=None,
    )
