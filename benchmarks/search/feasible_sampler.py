"""Optuna's own samplers, kept to the feasible candidates that are still new.

The inner sampler proposes knob values; a proposal that is infeasible (rules between knobs) or
already measured is asked for again, and after a while the nearest feasible one is taken.

What Optuna 5.0 makes of our trials (read in its source, held by
tests/unit/search/test_feasible_sampler.py):
TPE puts a pruned trial whose constraint is violated among the infeasible ones, ordered by its
violation, before it looks at intermediate values. GPSampler looks at completed trials only.
"""

import random
from collections.abc import Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, GPSampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState

from autotune.search.sampler.expected import Params, key_of
from autotune.search.sampler.sampler import FIXED
from autotune.search.study import best_stable_value

PROPOSALS = 32
STARTUP_TRIALS = 5


def inner_sampler(name: str, seed: int) -> BaseSampler | None:
    """Return Optuna's sampler of a name; None: take the candidates in their order."""
    if name == "tpe":
        return TPESampler(seed=seed, n_startup_trials=STARTUP_TRIALS, multivariate=True)
    if name == "gp":
        return GPSampler(seed=seed, n_startup_trials=STARTUP_TRIALS)
    return RandomSampler(seed=seed) if name == "random" else None


class FeasibleSampler(RandomSampler):
    """A sampler that proposes only members of `feasible` that no finished or running trial has.

    Args:
        distributions: of all free knobs.
        feasible: the parameters of every feasible candidate.
        opening: what to try first, in this order.
        lean: `feasible` ordered by how little memory each is expected to take; used as long as
            nothing has fitted.
        seed: of all randomness.
        sampler: what proposes; None: `feasible` in its order.
    """

    def __init__(
        self,
        distributions: dict[str, BaseDistribution],
        feasible: Sequence[Params],
        opening: Sequence[Params],
        lean: Sequence[Params],
        seed: int,
        sampler: BaseSampler | None,
    ):
        super().__init__(seed)
        self._distributions = distributions
        self._feasible, self._opening, self._lean = feasible, opening, lean
        self._left_out: Sequence[Params] = ()
        self._random = random.Random(seed)
        self._sampler = sampler

    def leave_out(self, params: Sequence[Params]) -> None:
        """Exclude these, and only these, from all further proposals."""
        self._left_out = params

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return all free knobs, always: a candidate is chosen as a whole."""
        return self._distributions

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the parameters of the next candidate."""
        if FIXED in trial.system_attrs:
            return {}  # a trial that was enqueued has its parameters
        trials = study.get_trials(deepcopy=False)
        probed_params = [t.params for t in trials if _counts(t) and t.number != trial.number]
        excluded_keys = {key_of(params) for params in (*probed_params, *self._left_out)}
        new = [params for params in self._feasible if key_of(params) not in excluded_keys]
        if not new:
            raise RuntimeError("every candidate has been probed")
        for params in self._opening:
            if params in new:
                return dict(params)
        if self._sampler is None:
            return dict(new[0])
        if best_stable_value(study) is None:
            return dict(next(params for params in self._lean if params in new))
        return dict(self._proposal(self._sampler, study, trial, new))

    def _proposal(
        self, sampler: BaseSampler, study: optuna.Study, trial: FrozenTrial, new: list[Params]
    ) -> Params:
        proposal: dict[str, Any] = {}
        for _ in range(PROPOSALS):
            proposal = sampler.sample_relative(study, trial, self._distributions)
            if not proposal:
                return self._random.choice(new)
            if proposal in new:
                return proposal
        return min(new, key=lambda params: sum(params[k] != v for k, v in proposal.items()))

    def reseed_rng(self) -> None:
        """Renew the randomness in another worker."""
        super().reseed_rng()
        self._random.seed()
        if self._sampler is not None:
            self._sampler.reseed_rng()


def _counts(trial: FrozenTrial) -> bool:
    """True if a trial counts for its candidate (an interrupted or busy one does not)."""
    return trial.state in (TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING)
