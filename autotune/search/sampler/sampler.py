"""The sampler that proposes the candidate with the most to gain, by its estimate.

An `optuna.samplers.BaseSampler` over enumerated candidates, for any Optuna study with one
objective:

    sampler = EstimateGuidedSampler(distributions, candidates, expected)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    trial = study.ask(distributions)

Values are speeds, or times where the study minimises; what is expected is a speed in both cases.
There is no random start. Each candidate has an expected speed and memory before any trial
(`Expected`); trials correct both (`beliefs.py`, `surrogate.py`), and the candidate with the largest
expected improvement times the probability that it fits and runs is next.

What a trial says is read as Optuna has it: its value, its intermediate values, its constraint
`memory` (bytes beyond what is allowed), and how well its value is known, where it has the user
attribute `relative_error` (one standard deviation). A trial that is pruned with that constraint
violated ran out of memory and is a lower bound, one that is pruned with intermediate values was
stopped early and is a noisier reading, one that is pruned with neither, or violates another
constraint, does not run. A failed trial says nothing, and its candidate may be proposed again.

The same trials give the same proposal, always. Inside `study.optimize` the study is stopped when
every candidate was proposed.
"""

import contextlib
import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from autotune.estimate.residual import Residual
from autotune.search.sampler.beliefs import Beliefs, Believer, TrialReading, best_new
from autotune.search.sampler.expected import NOTHING_KNOWN, Expected, Params, Reading, key_of

FIXED = "fixed_params"
"""Where Optuna keeps the parameters of an enqueued trial."""
ERROR = "relative_error"
"""The attribute of a trial that states how well its value is known."""
MEMORY = "memory"
"""The constraint that states by how many bytes a trial exceeds what is allowed."""


class EstimateGuidedSampler(BaseSampler):
    """A sampler that proposes the candidate with most to gain, none twice.

    Args:
        distributions: of every parameter of a candidate.
        candidates: all that may be proposed, in the order that decides between equals; where a
            study asks for anything else, Optuna's TPE answers.
        expected: of each candidate; where not given, nothing is known.
        allowed_bytes: memory a candidate may take; None: any.
        residual: what is assumed of the memory estimates.
        history: readings of earlier studies, with what was expected there.
        seed: of Optuna's sampler, for parameters outside the candidates.

    Raises:
        ValueError: what is expected is no number above 0, or not one for each candidate.
    """

    def __init__(
        self,
        distributions: Mapping[str, BaseDistribution] | None = None,
        candidates: Sequence[Params] = (),
        expected: Sequence[Expected] | None = None,
        *,
        allowed_bytes: float | None = None,
        residual: Residual | None = None,
        history: Sequence[Reading] = (),
        seed: int | None = None,
    ):
        self._fallback = TPESampler(seed=seed, n_startup_trials=1, multivariate=True)
        self._distributions = dict(distributions or {})
        self._candidates = list(candidates)
        self._expected = list(expected or [NOTHING_KNOWN] * len(self._candidates))
        if len(self._expected) != len(self._candidates):
            raise ValueError(
                f"{len(self._candidates)} candidates, but {len(self._expected)} are expected"
            )
        for expected_value in self._expected:
            expected_value.check()
        self._index = {key_of(params): n for n, params in enumerate(self._candidates)}
        self._allowed_bytes = allowed_bytes
        self._believer = Believer(
            self._candidates, self._expected, residual or Residual(), allowed_bytes, history
        )
        self._out_indices: set[int] = set()
        self._lock = threading.Lock()
        self._proposed: dict[tuple[str, int], int] = {}
        """Parameters given to trials that have not stored them yet, by study and number."""

    def leave_out(self, params: Sequence[Params]) -> None:
        """Exclude these, and only these, from all further proposals."""
        self._out_indices = {self._index[key_of(p)] for p in params}

    def beliefs(self, study: optuna.Study) -> Beliefs:
        """Return the beliefs about all candidates after the trials of `study`. What still runs is
        believed to come out as expected: it tells of its neighbours, and is never the best."""
        readings = self._readings(study)
        beliefs = self._believer.beliefs(readings)
        running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        indices = sorted({n for trial in running if (n := self._index_of(trial)) is not None})
        if not indices:
            return beliefs
        flying = [
            TrialReading(index=n, log_speed=float(beliefs.mean[n]), stopped=True) for n in indices
        ]
        return self._believer.beliefs([*readings, *flying])

    def gain(self, study: optuna.Study) -> float:
        """Return the expected improvement (logarithm of the speed) of the next proposal; 0: none is
        left."""
        new = self._new(study)
        beliefs = self.beliefs(study)
        return float(beliefs.improvement()[new].max()) if new else 0.0

    def expected_values(self, study: optuna.Study) -> dict[object, float]:
        """Return the believed speed of each candidate, by `key_of` its parameters."""
        speeds = np.exp(self.beliefs(study).mean)
        return {key: float(speeds[n]) for key, n in self._index.items()}

    # -- what Optuna asks

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Return a parameter outside the candidates."""
        return self._fallback.sample_independent(study, trial, param_name, param_distribution)

    def reseed_rng(self) -> None:
        """Renew the randomness in another worker."""
        self._fallback.reseed_rng()

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return all parameters of a candidate: it is chosen as a whole."""
        if self._candidates:
            return dict(self._distributions)
        return self._fallback.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the parameters of the next candidate.

        Raises:
            RuntimeError: every candidate has been proposed.
        """
        if FIXED in trial.system_attrs:
            return {}  # a trial that was enqueued has its parameters
        if not self._candidates or set(search_space) != set(self._distributions):
            return self._fallback.sample_relative(study, trial, search_space)
        with self._lock:
            new = self._new(study, trial.number)
            if not new:
                raise RuntimeError("every candidate has been probed")
            index = best_new(self.beliefs(study), new)
            self._proposed[study.study_name, trial.number] = index
        return dict(self._candidates[index])

    def after_trial(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """Stop `optimize` when there is nothing left to propose."""
        if self._candidates and state != TrialState.FAIL and not self._new(study):
            with contextlib.suppress(RuntimeError):  # outside `optimize`, whoever asks decides
                study.stop()

    # -- what the trials say

    def _new(self, study: optuna.Study, own_number: int | None = None) -> list[int]:
        taken_indices = set()
        for trial in study.get_trials(deepcopy=False):
            if trial.number != own_number and trial.state in _TAKEN_STATES:
                proposed_index = self._proposed.get((study.study_name, trial.number))
                taken_indices |= {proposed_index, self._index_of(trial)}
        return [
            n
            for n in range(len(self._candidates))
            if n not in taken_indices and n not in self._out_indices
        ]

    def _index_of(self, trial: FrozenTrial) -> int | None:
        """Return the index of a trial's candidate; its other parameters do not matter."""
        params = {
            name: value for name, value in trial.params.items() if name in self._distributions
        }
        return self._index.get(key_of(params))

    def _readings(self, study: optuna.Study) -> list[TrialReading]:
        states = (TrialState.COMPLETE, TrialState.PRUNED)
        trials = study.get_trials(deepcopy=False, states=states)
        sign = 1.0 if study.direction == StudyDirection.MAXIMIZE else -1.0
        indexed = ((self._index_of(trial), trial) for trial in trials)
        return [self._reading(n, trial, sign) for n, trial in indexed if n is not None]

    def _reading(self, index: int, trial: FrozenTrial, sign: float) -> TrialReading:
        excess = trial.constraints.get(MEMORY)
        peak = (
            None if excess is None or self._allowed_bytes is None else self._allowed_bytes + excess
        )
        noise = float(trial.user_attrs.get(ERROR) or 0.0)
        if trial.state == TrialState.COMPLETE:
            speed = _log(trial.value, sign)
            return TrialReading(index=index, log_speed=speed, noise=noise, peak_bytes=peak)
        if excess is not None and excess > 0:
            return TrialReading(index=index, peak_bytes=peak, at_least=True)
        if trial.last_step is not None and all(v <= 0 for v in trial.constraints.values()):
            value = trial.intermediate_values[trial.last_step]
            return TrialReading(index=index, log_speed=_log(value, sign), noise=noise, stopped=True)
        return TrialReading(index=index, failed=True)


def _log(value: float | None, sign: float) -> float | None:
    """Return the logarithm of a speed, or of a time with its sign turned; None where there is
    none."""
    if value is None or not 0 < value < math.inf:
        return None
    return sign * math.log(value)


_TAKEN_STATES = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.RUNNING)
