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
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import Trial as Trial
from optuna.trial import TrialState

from autotune.errors import user_error
from autotune.probe.outcome import WAITED, is_quiet
from autotune.probe.protocol import Measurement
from autotune.search.pruning import CannotWinPruner, best_stable_value
from autotune.search.record import Record, excess_bytes
from autotune.search.repeats import SD_95
from autotune.search.sampler.expected import key_of
from autotune.search.sampler.params import Sampler, distributions, params_of
from autotune.search.sampler.sampler import ERROR, EstimateGuidedSampler
from autotune.space.bind import SearchSpace
from autotune.space.knobs import Candidate, from_knobs

STUDY_NAME = "autotune"
_CANDIDATE, _MEASUREMENT = "candidate", "measurement"
NEVER_RUNS = float(2**50)
AFTER_THE_LAST = 10**6
"""The step at which a stopped probe reports what it had measured."""
_SILENT = ("busy", "interrupted")
_NOT_RUNNING = ("timeout", "crash", "unstable", "unsupported")


class Study:
    """A run's Optuna study.

    Args:
        space: what is searched.
        database: the run's SQLite file, or any Optuna storage URL.
        name: of the study in a shared storage.
        allowed_bytes: peak memory a candidate may have (limit less headroom).
        sampler: what proposes; a study that is only read needs none.
    """

    def __init__(
        self,
        space: SearchSpace,
        database: Path | str,
        name: str,
        *,
        allowed_bytes: int | None,
        sampler: Sampler | None = None,
    ):
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._space, self._allowed_bytes, self._sampler = space, allowed_bytes, sampler
        self._left_out: frozenset[str] = frozenset()
        self._study = optuna.create_study(
            storage=_storage(database),
            study_name=name,
            direction="maximize",
            sampler=sampler,
            pruner=CannotWinPruner(),
            load_if_exists=True,
        )

    def leave_out(self, keys: frozenset[str]) -> None:
        """Candidates, by key, that are not to be proposed from now on."""
        self._left_out = keys
        if self._sampler is not None:
            out_candidates = [c for c in self._space.candidates if c.key in keys]
            self._sampler.leave_out(
                [params_of(self._space, candidate) for candidate in out_candidates]
            )

    def best_value(self) -> float | None:
        """Tokens/s of the fastest probe that fits; None before there is one."""
        return best_stable_value(self._study)

    def gain(self) -> float | None:
        """Expected relative gain of the next probe over the fastest that fits.

        None: nothing fits yet, or this sampler expects nothing.
        """
        if not isinstance(self._sampler, EstimateGuidedSampler):
            return None
        if best_stable_value(self._study) is None:
            return None
        return math.expm1(self._sampler.gain(self._study))

    def expected_values(self) -> dict[str, float]:
        """What the candidates' tokens/s are believed to be, by estimate and probes; by their keys.

        Empty where this sampler expects nothing.
        """
        if not isinstance(self._sampler, EstimateGuidedSampler):
            return {}
        values = self._sampler.expected_values(self._study)
        return {c.key: values[key_of(params_of(self._space, c))] for c in self._space.candidates}

    def ask(self) -> tuple[Trial, Candidate]:
        """The next candidate, recorded as running before anything is done with it."""
        trial = self._study.ask(distributions(self._space))
        params = dict(trial.params)
        candidates = self._space.candidates
        candidate = next(c for c in candidates if params_of(self._space, c) == params)
        trial.set_user_attr(_CANDIDATE, candidate.knobs)
        return trial, candidate

    def ask_for(self, candidate: Candidate) -> tuple[Trial, Candidate]:
        """A trial of this candidate, whether it has been probed or not."""
        self._study.enqueue_trial(params_of(self._space, candidate))
        return self.ask()

    def tell(self, trial: Trial, measurement: Measurement) -> None:
        """Record how the probe of `trial` ended."""
        trial.set_user_attr(_MEASUREMENT, measurement.plain())
        if measurement.relative_uncertainty is not None:
            trial.set_user_attr(ERROR, measurement.relative_uncertainty / SD_95)
        if measurement.outcome == "stopped" and measurement.tokens_per_s:
            # What was reported before were upper ends; the last value is what is believed.
            trial.report(measurement.tokens_per_s, AFTER_THE_LAST)
        excess = excess_bytes(measurement, self._allowed_bytes)
        if excess is not None:
            trial.set_constraint("memory", excess)
        if measurement.outcome == "host_oom":
            trial.set_constraint("host_memory", float(measurement.missing_bytes or 1))
        if measurement.outcome in _NOT_RUNNING:
            trial.set_constraint("runs", NEVER_RUNS)
        if measurement.outcome == "ok":
            self._study.tell(trial, measurement.tokens_per_s)
        elif measurement.outcome in _SILENT:
            self._study.tell(trial, state=TrialState.FAIL)
        else:
            self._study.tell(trial, state=TrialState.PRUNED)

    def cannot_win(self, trial: Trial) -> Callable[[dict[str, Any]], str | None]:
        """Watches the steps of a probe and tells when it cannot win any more."""

        def watch(event: dict[str, Any]) -> str | None:
            if event.get("event") != "estimate" or "optimistic_tokens_per_s" not in event:
                return None
            if not is_quiet(event.get(WAITED)):  # so slow is the machine, not the candidate
                return None
            trial.report(event["optimistic_tokens_per_s"], event["step"])
            if not trial.should_prune():
                return None
            return (
                f"at best {event['optimistic_tokens_per_s']:.0f} tokens/s after step "
                f"{event['step']}: it cannot win"
            )

        return watch

    def records(self) -> list[Record]:
        """Every probe so far, in order."""
        records = []
        for trial in self._study.get_trials(deepcopy=False):
            if _CANDIDATE not in trial.user_attrs:
                continue
            measurement = trial.user_attrs.get(_MEASUREMENT)
            records.append(
                Record(
                    number=trial.number,
                    candidate=from_knobs(trial.user_attrs[_CANDIDATE]),
                    measurement=Measurement.from_plain(measurement) if measurement else None,
                )
            )
        return records

    def running(self) -> list[Trial]:
        """Trials that an earlier process of this run left unfinished."""
        return [
            Trial(self._study, trial._trial_id)
            for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        ]

    def drop_waiting(self) -> None:
        """Forget what was to be probed next when an earlier process of this run was killed."""
        while self._study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
            self.abandon(self._study.ask())

    def abandon(self, trial: Trial) -> None:
        """Close a trial that never got a candidate."""
        self._study.tell(trial, state=TrialState.FAIL)

    def candidates_left(self) -> int:
        """Candidates of the space that have not been probed."""
        probed_keys = {
            record.candidate.key
            for record in self.records()
            if record.measurement is None or record.measurement.outcome not in _SILENT
        }
        closed_keys = probed_keys | self._left_out
        return sum(candidate.key not in closed_keys for candidate in self._space.candidates)


def _storage(database: Path | str) -> Any:
    """The storage of a study.

    Raises:
        UserError: it cannot be opened.
    """
    try:
        if isinstance(database, Path):
            return _sqlite(database)
        return optuna.storages.get_storage(database)
    except Exception as error:
        where = str(database) if isinstance(database, Path) else "--storage"
        raise user_error(
            f"cannot open the study: {type(error).__name__}: {str(error).splitlines()[0]}",
            where=where,
            hint="an Optuna storage URL looks like `postgresql://user@host/database`",
        ) from None


def _sqlite(database: Path) -> Any:
    """A SQLite file, opened by a creator: no character of its path is taken for URL syntax."""
    return optuna.storages.RDBStorage(
        "sqlite://",
        engine_kwargs={
            "creator": lambda: sqlite3.connect(database, timeout=60, check_same_thread=False),
            "poolclass": _null_pool(),
        },
    )


def _null_pool() -> Any:
    from sqlalchemy.pool import NullPool

    return NullPool
