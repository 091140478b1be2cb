"""Which candidate to probe next: Optuna's TPE, kept to the feasible candidates that are still new.

An `optuna.samplers.BaseSampler` over an enumerated set. The inner sampler proposes knob values; a
proposal that is infeasible (rules between knobs) or already measured is asked for again, and after
a while the nearest feasible one is taken. This is the seam: another sampler takes its place here.

What Optuna 5.0 makes of our trials (read in its source, and held by tests/unit/test_search.py):
TPE puts a pruned trial whose constraint is violated among the infeasible ones, ordered by its
violation, before it looks at intermediate values. GPSampler looks at completed trials only.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState

from autotune.search.pruning import best_stable_value

PROPOSALS = 32
STARTUP_TRIALS = 5
Params = dict[str, Any]


class FeasibleSampler(BaseSampler):
    """Proposes only members of `feasible` that no finished or running trial has.

    Args:
        distributions: of all free knobs.
        feasible: the parameters of every feasible candidate.
        opening: what to try first, in this order.
        lean: `feasible` ordered by how little memory each is expected to take; used as long as
            nothing has fitted.
        seed: of all randomness.
    """

    def __init__(
        self,
        distributions: dict[str, BaseDistribution],
        feasible: Sequence[Params],
        opening: Sequence[Params],
        lean: Sequence[Params],
        seed: int,
    ):
        self._distributions = distributions
        self._feasible, self._opening, self._lean = feasible, opening, lean
        self._left_out: Sequence[Params] = ()
        self._acceptable: Callable[[Params], bool] | None = None
        self._random = random.Random(seed)
        self._inner = TPESampler(seed=seed, n_startup_trials=STARTUP_TRIALS, multivariate=True)

    def ask_first(self, acceptable: Callable[[Params], bool]) -> None:
        """Propose only what is acceptable; it is asked of each proposal before it is made."""
        self._acceptable = acceptable

    def leave_out(self, hopeless: Sequence[Params]) -> None:
        """Do not propose these."""
        self._left_out = hopeless

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """All free knobs, always: a candidate is chosen as a whole."""
        return self._distributions

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> Params:
        """The parameters of the next candidate."""
        finished = study.get_trials(deepcopy=False)
        seen = [t.params for t in finished if _counts(t) and t.number != trial.number]
        refused: list[Params] = []
        while True:
            gone = {_key(params) for params in (*seen, *self._left_out, *refused)}
            new = [params for params in self._feasible if _key(params) not in gone]
            if not new and not refused:
                raise RuntimeError("every candidate has been probed")
            if not new:
                return refused[-1]  # a measurement has to say it then
            params = self._next(study, trial, search_space, new)
            if self._acceptable is None or self._acceptable(params):
                return params
            refused.append(params)

    def _next(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],
        new: list[Params],
    ) -> Params:
        for params in self._opening:
            if params in new:
                return dict(params)
        if best_stable_value(study) is None:
            return dict(next(params for params in self._lean if params in new))
        return dict(self._proposed(study, trial, search_space, new))

    def _proposed(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],
        new: list[Params],
    ) -> Params:
        proposal: Params = {}
        for _ in range(PROPOSALS):
            proposal = self._inner.sample_relative(study, trial, search_space)
            if not proposal:
                return self._random.choice(new)
            if proposal in new:
                return proposal
        return min(new, key=lambda params: sum(params[k] != v for k, v in proposal.items()))

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """A parameter outside the space: left to Optuna."""
        return self._inner.sample_independent(study, trial, param_name, param_distribution)

    def reseed_rng(self) -> None:
        """Fresh randomness in another worker."""
        self._random.seed()
        self._inner.reseed_rng()


def _key(params: Params) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, repr(value)) for name, value in params.items()))


def _counts(trial: FrozenTrial) -> bool:
    """Whether a trial says something of its candidate (an interrupted or busy one does not)."""
    return trial.state in (TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING)
