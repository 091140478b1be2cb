"""The Optuna study: the one system of record.

Every trial carries its whole candidate and measurement as attributes, so nothing is lost to
whoever opens the study. How an outcome ends its trial:

    ok                       COMPLETE, value = tokens/s
    oom, host_oom, stopped,  PRUNED: they say something of the candidate, and are not tried again
    timeout, crash, unstable, unsupported
    busy, interrupted        FAIL: they say nothing of the candidate, which may be tried again

The constraint `memory` is the bytes by which a candidate exceeds what it may use (<= 0: it fits);
`host_memory` those that the host lacked, where its memory ran out; `runs` is violated by more than
any memory can be where a candidate does not run at all (TPE adds violations up, so one that only
lacks memory counts as nearer).
"""

import math
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import optuna
from optuna.pruners import BasePruner
from optuna.trial import FrozenTrial, TrialState
from optuna.trial import Trial as Trial

from autotune.errors import user_error
from autotune.probe.outcome import WAITED, is_quiet
from autotune.probe.protocol import Measurement
from autotune.process.run_folder import STORAGE
from autotune.search.record import Record, excess_bytes
from autotune.search.repeats import SD_95
from autotune.search.sampler.expected import key_of
from autotune.search.sampler.params import distributions, params_of
from autotune.search.sampler.sampler import ERROR, EstimateGuidedSampler
from autotune.search.storage import open_storage
from autotune.space.bind import SearchSpace
from autotune.space.knobs import ACCUMULATION, MICRO_BATCH, Candidate, from_knobs

STUDY_NAME = "autotune"
_CANDIDATE, _MEASUREMENT = "candidate", "measurement"
NEVER_RUNS = float(2**50)
REPORT_S = 0.5
"""Seconds between reports of a running probe: each is a transaction, and a hundred a second took a
tenth of two cores from the small training that they were about."""
AFTER_THE_LAST = 10**6
"""The step at which a stopped probe reports its measured speed."""
_SILENT = ("busy", "interrupted")
_NOT_RUNNING = ("timeout", "crash", "unstable", "unsupported")


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


class Study:
    """A run's Optuna study.

    Args:
        space: what is searched.
        database: the run's SQLite file, or any Optuna storage URL.
        name: of the study in a shared storage.
        allowed_bytes: peak memory a candidate may have (limit less headroom).
        sampler: what proposes; without it the study is only read, and has to be there.

    Raises:
        UserError: its storage cannot be opened, or holds no study of that name.
    """

    def __init__(
        self,
        space: SearchSpace,
        database: Path | str,
        name: str,
        *,
        allowed_bytes: int | None,
        sampler: EstimateGuidedSampler | None = None,
    ):
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._space, self._allowed_bytes, self._sampler = space, allowed_bytes, sampler
        self._left_out: frozenset[str] = frozenset()
        storage = open_storage(database, make=sampler is not None)
        if sampler is None:
            self._study = _study_in(storage, name)
            return
        self._study = optuna.create_study(
            storage=storage,
            study_name=name,
            direction="maximize",
            sampler=sampler,
            pruner=CannotWinPruner(),
            load_if_exists=True,
        )

    def leave_out(self, keys: frozenset[str]) -> None:
        """Exclude these candidates, by key, from all further proposals."""
        self._left_out = keys
        if self._sampler is not None:
            out_candidates = [c for c in self._space.candidates if c.key in keys]
            self._sampler.leave_out(
                [params_of(self._space, candidate) for candidate in out_candidates]
            )

    def best_value(self) -> float | None:
        """Return the tokens/s of the fastest probe that fits; None before there is one."""
        return best_stable_value(self._study)

    def gain(self) -> float | None:
        """Return the expected relative gain of the next probe over the fastest that fits.

        None: nothing fits yet.
        """
        if self._sampler is None or best_stable_value(self._study) is None:
            return None
        return math.expm1(self._sampler.gain(self._study))

    def expected_values(self) -> dict[str, float]:
        """Return the believed tokens/s of the candidates, by estimate and probes, by their keys."""
        if self._sampler is None:
            return {}
        values = self._sampler.expected_values(self._study)
        return {c.key: values[key_of(params_of(self._space, c))] for c in self._space.candidates}

    def ask(self) -> tuple[Trial, Candidate]:
        """Return the next candidate, recorded as running before anything is done with it."""
        trial = self._study.ask(distributions(self._space))
        params = dict(trial.params)
        candidates = self._space.candidates
        candidate = next(c for c in candidates if params_of(self._space, c) == params)
        trial.set_user_attr(_CANDIDATE, candidate.knobs)
        return trial, candidate

    def ask_for(self, candidate: Candidate) -> tuple[Trial, Candidate]:
        """Return a trial of this candidate, whether it has been probed or not."""
        self._study.enqueue_trial(params_of(self._space, candidate))
        return self.ask()

    def tell(self, trial: Trial, measurement: Measurement) -> None:
        """Record how the probe of `trial` ended; also where a killed process had begun to."""
        trial.set_user_attr(_MEASUREMENT, measurement.plain())
        if measurement.relative_uncertainty is not None:
            trial.set_user_attr(ERROR, measurement.relative_uncertainty / SD_95)
        if measurement.outcome == "stopped" and measurement.tokens_per_s:
            self._report_last(trial, measurement.tokens_per_s)
        for name, excess in self._constraints(measurement).items():
            if name not in trial.constraints:
                trial.set_constraint(name, excess)
        if measurement.outcome == "ok":
            self._study.tell(trial, measurement.tokens_per_s)
        elif measurement.outcome in _SILENT:
            self._study.tell(trial, state=TrialState.FAIL)
        else:
            self._study.tell(trial, state=TrialState.PRUNED)

    def _constraints(self, measurement: Measurement) -> dict[str, float]:
        """Return the constraints that a probe broke: above 0 is too much."""
        broken: dict[str, float] = {}
        excess = excess_bytes(measurement, self._allowed_bytes)
        if excess is not None:
            broken["memory"] = excess
        if measurement.outcome == "host_oom":
            broken["host_memory"] = float(measurement.missing_bytes or 1)
        if measurement.outcome in _NOT_RUNNING:
            broken["runs"] = NEVER_RUNS
        return broken

    def _report_last(self, trial: Trial, tokens_per_s: float) -> None:
        """Report the believed value last: the earlier reports were upper ends."""
        reported = self._study.get_trials(deepcopy=False)[trial.number].intermediate_values
        if AFTER_THE_LAST not in reported:
            trial.report(tokens_per_s, AFTER_THE_LAST)

    def cannot_win(self, trial: Trial) -> Callable[[dict[str, Any]], str | None]:
        """Return a watch over the steps of a probe, which gives a reason when it cannot win any
        more."""
        due = 0.0

        def watch(event: dict[str, Any]) -> str | None:
            nonlocal due
            if event.get("event") != "estimate" or "optimistic_tokens_per_s" not in event:
                return None
            if not is_quiet(event.get(WAITED)):  # so slow is the machine, not the candidate
                return None
            if time.monotonic() < due:
                return None
            due = time.monotonic() + REPORT_S
            trial.report(event["optimistic_tokens_per_s"], event["step"])
            if not trial.should_prune():
                return None
            return (
                f"at best {event['optimistic_tokens_per_s']:.0f} tokens/s after step "
                f"{event['step']}: it cannot win"
            )

        return watch

    def records(self) -> list[Record]:
        """Return every probe so far, in order, but for those that are `unreadable`."""
        return self._read()[0]

    def unreadable(self) -> dict[int, str]:
        """Return the number of each trial whose probe this space cannot read, with the reason."""
        return self._read()[1]

    def _read(self) -> tuple[list[Record], dict[int, str]]:
        records, unreadable = [], {}
        for trial in self._study.get_trials(deepcopy=False):
            if _CANDIDATE not in trial.user_attrs:
                continue
            try:
                records.append(self._record(trial.number, trial.user_attrs))
            except (TypeError, ValueError) as error:
                unreadable[trial.number] = str(error)
        return records, unreadable

    def _record(self, number: int, attributes: dict[str, Any]) -> Record:
        candidate = candidate_of(attributes[_CANDIDATE], self._space)
        plain = attributes.get(_MEASUREMENT)
        if plain is not None and not isinstance(plain, dict):
            raise TypeError("its measurement does not say how it ended")
        measurement = Measurement.from_plain(plain) if plain else None
        if measurement is not None and measurement.outcome == "ok":
            check_figures(measurement)
        return Record(number=number, candidate=candidate, measurement=measurement)

    @property
    def trials(self) -> int:
        """The number of its trials, of whatever kind."""
        return len(self._study.get_trials(deepcopy=False))

    def running(self) -> list[Trial]:
        """Return the trials that an earlier process of this run left unfinished."""
        return [
            Trial(self._study, trial._trial_id)
            for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        ]

    def drop_waiting(self) -> None:
        """Forget the waiting candidates of an earlier process of this run that was killed."""
        while self._study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
            self.abandon(self._study.ask())

    def skip(self) -> None:
        """Leave a number out: its trial failed and has no candidate."""
        self._study.add_trial(optuna.trial.create_trial(state=TrialState.FAIL))

    def abandon(self, trial: Trial) -> None:
        """Close a trial that never got a candidate."""
        self._study.tell(trial, state=TrialState.FAIL)

    def candidates_left(self) -> int:
        """Return the number of candidates of the space that have not been probed."""
        probed_keys = {
            record.candidate.key
            for record in self.records()
            if record.measurement is None or record.measurement.outcome not in _SILENT
        }
        closed_keys = probed_keys | self._left_out
        return sum(candidate.key not in closed_keys for candidate in self._space.candidates)


def candidate_of(knobs: Any, space: SearchSpace) -> Candidate:
    """Return the candidate of stored data; its values may be of another version of the space.

    Raises:
        TypeError: so it is.
    """
    names = space.candidates[0].knobs.keys()
    if not isinstance(knobs, dict) or knobs.keys() != names:
        raise TypeError("its candidate has other knobs than this run")
    for name in (MICRO_BATCH, ACCUMULATION):
        if isinstance(knobs[name], bool) or not isinstance(knobs[name], int) or knobs[name] < 1:
            raise TypeError(f"its candidate has no {name}")
    return from_knobs(knobs)


def check_figures(measurement: Measurement) -> None:
    """Refuse an ok measurement that cannot be ranked.

    Raises:
        ValueError: so it is.
    """
    if not measurement.tokens_per_s or measurement.tokens_per_s < 0:
        raise ValueError("its measurement says ok, and has no speed")


def _study_in(storage: Any, name: str) -> optuna.Study:
    """Return the study of that name in a storage.

    Raises:
        UserError: there is none.
    """
    try:
        return optuna.load_study(study_name=name, storage=storage)
    except KeyError:
        raise user_error(
            f"it holds no study `{name}`",
            where=STORAGE,
            hint="name the storage that the run was started with",
        ) from None
