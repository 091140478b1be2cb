"""The Optuna study: the one system of record.

Every trial carries its whole candidate and measurement as attributes, so nothing is lost to
whoever opens the study. How an outcome ends its trial:

    ok                       COMPLETE, value = tokens/s
    oom, stopped, timeout,   PRUNED: they say something of the candidate, and are not tried again
    crash, unstable, unsupported
    busy, interrupted        FAIL: they say nothing of the candidate, which may be tried again

The constraint `memory` is the bytes by which a candidate exceeds what it may use (<= 0: it fits);
`runs` is violated by more than any memory can be where a candidate does not run at all (TPE adds
violations up, so one that only lacks memory counts as nearer).
"""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import Trial, TrialState

from autotune.errors import user_error
from autotune.probe.protocol import Measurement
from autotune.probe.record import Record, excess_bytes
from autotune.search.pruning import CannotWinPruner
from autotune.search.sampler import FeasibleSampler
from autotune.space.knobs import Candidate, from_knobs, value_label
from autotune.space.leanness import expected_leanness
from autotune.space.spaces import SearchSpace

STUDY_NAME = "autotune"
_CANDIDATE, _MEASUREMENT = "candidate", "measurement"
NEVER_RUNS = float(2**50)
_SILENT = ("busy", "interrupted")
_NOT_RUNNING = ("timeout", "crash", "unstable", "unsupported")


class Study:
    """A run's Optuna study.

    Args:
        space: what is searched.
        database: the run's SQLite file, or any Optuna storage URL.
        name: of the study in a shared storage.
        allowed_bytes: peak memory a candidate may have (limit less headroom).
        opening: candidates to try first.
        seed: of the sampler.
    """

    def __init__(
        self,
        space: SearchSpace,
        database: Path | str,
        name: str,
        *,
        allowed_bytes: int | None,
        opening: tuple[Candidate, ...],
        seed: int,
    ):
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._space, self._allowed = space, allowed_bytes
        self._knobs = [knob.name for knob in space.free_knobs]
        self._hopeless: frozenset[str] = frozenset()
        self._sampler = FeasibleSampler(
            self._distributions(),
            [self._params(candidate) for candidate in space.candidates],
            [self._params(candidate) for candidate in opening],
            [self._params(c) for c in sorted(space.candidates, key=expected_leanness)],
            seed,
        )
        self._study = optuna.create_study(
            storage=_storage(database),
            study_name=name,
            direction="maximize",
            sampler=self._sampler,
            pruner=CannotWinPruner(),
            load_if_exists=True,
        )

    def _distributions(self) -> dict[str, BaseDistribution]:
        return {
            knob.name: CategoricalDistribution([_choice(value) for value in knob.values])
            for knob in self._space.free_knobs
        }

    def _params(self, candidate: Candidate) -> dict[str, Any]:
        return {name: _choice(candidate[name]) for name in self._knobs}

    def leave_out(self, keys: frozenset[str]) -> None:
        """Candidates, by key, that are not to be proposed from now on."""
        self._hopeless = keys
        self._sampler.leave_out([self._params(c) for c in self._space.candidates if c.key in keys])

    def _candidate(self, params: dict[str, Any]) -> Candidate:
        return next(c for c in self._space.candidates if self._params(c) == params)

    def ask(
        self, acceptable: Callable[[Candidate], bool] = lambda _: True
    ) -> tuple[Trial, Candidate]:
        """The next candidate, recorded as running before anything is done with it.

        Args:
            acceptable: asked of each candidate before it is proposed.
        """
        self._sampler.ask_first(lambda params: acceptable(self._candidate(params)))
        trial = self._study.ask(self._distributions())
        candidate = self._candidate(dict(trial.params))
        trial.set_user_attr(_CANDIDATE, candidate.knobs)
        return trial, candidate

    def tell(self, trial: Trial, measurement: Measurement) -> None:
        """Record how the probe of `trial` ended."""
        trial.set_user_attr(_MEASUREMENT, measurement.plain())
        excess = excess_bytes(measurement, self._allowed)
        if excess is not None:
            trial.set_constraint("memory", excess)
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
            stored = trial.user_attrs.get(_MEASUREMENT)
            records.append(
                Record(
                    number=trial.number,
                    candidate=from_knobs(trial.user_attrs[_CANDIDATE]),
                    measurement=Measurement.from_plain(stored) if stored else None,
                )
            )
        return records

    def running(self) -> list[Trial]:
        """Trials that an earlier process of this run left unfinished."""
        return [
            Trial(self._study, trial._trial_id)
            for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        ]

    def abandon(self, trial: Trial) -> None:
        """Close a trial that never got a candidate."""
        self._study.tell(trial, state=TrialState.FAIL)

    def candidates_left(self) -> int:
        """Candidates of the space that have not been probed."""
        told = {
            record.candidate.key
            for record in self.records()
            if record.measurement is None or record.measurement.outcome not in _SILENT
        }
        done = told | self._hopeless
        return sum(candidate.key not in done for candidate in self._space.candidates)


def _choice(value: Any) -> Any:
    return value_label(value) if isinstance(value, list) else value


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
