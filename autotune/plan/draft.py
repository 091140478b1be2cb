"""The draft of a plan while its traces run: it is shown as it improves, and may be stopped.

What is generated together is the faster the more there is of it, and takes the more memory. A
candidate that generates less at once than one that is safe and otherwise the same is no answer:
where the method generates, the candidates are estimated in waves, those with the most first.
"""

import dataclasses
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Self

from autotune.estimate.estimate import Estimate
from autotune.estimate.protocol import EstimateReply
from autotune.job.methods import METHODS
from autotune.plan.choices import Choice, choices, is_safe
from autotune.plan.estimator import Estimator
from autotune.plan.narrowing import key_without, named_knobs
from autotune.space.bind import ALL_AT_ONCE, SearchSpace
from autotune.space.checkpointing import CHECKPOINTING
from autotune.space.knobs import Candidate
from autotune.space.memory_order import expected_leanness


class Draft:
    """The candidates of a space as far as they are estimated.

    Args:
        space: all candidates that may be estimated.
        estimator: of the job; its progress is shown each better choice.

    Attributes:
        estimates: those that are known, by the candidates' keys.
        stopped: whether the user stopped the traces before they were done.
    """

    def __init__(self, space: SearchSpace, estimator: Estimator) -> None:
        self._all, self._estimator = space, estimator
        self.estimates = estimator.ruled_out(space.candidates)
        self.stopped = False
        self._by_formula: set[str] = set()
        self._lock = threading.Lock()
        self._shown: str | None = None

    def trace(self, *, whole: bool = False) -> Self:
        """Make all traces that may matter, until the user stops them; return the draft.

        Args:
            whole: whether every candidate is estimated, even if it cannot be the answer.

        Raises:
            KeyboardInterrupt: the user stopped them, and nothing is known yet.
        """
        ruled_out = len(self.estimates)
        try:
            self._trace(whole=whole)
        except KeyboardInterrupt:
            if len(self.estimates) == ruled_out:
                raise
            self.stopped = True
        return self

    def add(self, candidate: Candidate, estimate: Estimate) -> None:
        """Add a candidate, with its estimate."""
        others = (known for known in self._all.candidates if known.key != candidate.key)
        self._all = dataclasses.replace(self._all, candidates=(*others, candidate))
        self.estimates[candidate.key] = estimate

    @property
    def space(self) -> SearchSpace:
        """The space of the candidates that have an estimate."""
        candidates = tuple(c for c in self._all.candidates if c.key in self.estimates)
        return dataclasses.replace(self._all, candidates=candidates)

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The choices among these candidates, the best first."""
        space, devices = self.space, self._estimator.job.devices.total
        pairs = [(candidate, self.estimates[candidate.key]) for candidate in space.candidates]
        return tuple(choices(space, pairs, devices))

    @property
    def left_out(self) -> int:
        """The number of candidates that have no estimate yet."""
        return sum(candidate.key not in self.estimates for candidate in self._all.candidates)

    @property
    def by_formula(self) -> int:
        """The number of candidates whose engine was not traced for them."""
        return len(self._by_formula)

    def _trace(self, *, whole: bool) -> None:
        candidates, job = self._all.candidates, self._estimator.job
        some_fit = False
        if METHODS[job.method].online and len(self._estimator.tasks(candidates)) > 1:
            some_fit = self._look_first()
        if whole or not some_fit:
            self._estimate(candidates)
            return
        named = named_knobs(job)
        while wave := next_wave(candidates, self.estimates, named):
            self._estimate(wave)

    def _look_first(self) -> bool:
        """Estimate the leanest candidates with and without checkpointing before all others: where
        the method generates, a variant takes long. Their traces are kept for later.

        Returns:
            Whether one fits. If none does, what is larger needs no trace, where all candidates are
            looked at together.
        """
        ordered = sorted(self._all.candidates, key=expected_leanness)
        leanest = {one.values.get(CHECKPOINTING): one for one in reversed(ordered)}
        estimates = self._estimator.estimates(list(leanest.values()))
        self.estimates |= estimates
        self._show()
        return any(estimate.fits for estimate in estimates.values())

    def _estimate(self, candidates: Sequence[Candidate]) -> None:
        """Estimate candidates; those that are ruled out have their estimates already."""
        tasks = self._estimator.tasks(candidates)

        def receive(replies: Mapping[int, EstimateReply]) -> None:
            with self._lock:  # children report from several threads
                for number, reply in replies.items():
                    estimates = self._estimator.combined([tasks[number]], [reply])
                    self.estimates |= estimates
                    self._by_formula -= estimates.keys()
                    self._by_formula |= estimates.keys() if reply.by_formula else set()
                self._show()

        self._estimator.replies(tasks, receive)

    def _show(self) -> None:
        """Show the best choice, if it fits and differs from the last one."""
        best = self.choices[0]
        if best.estimate.fits and best.candidate.key != self._shown:
            self._shown = best.candidate.key
            devices = self._estimator.job.devices.total
            self._estimator.progress.improved(best, self._all, devices)


def next_wave(
    candidates: Iterable[Candidate], estimates: Mapping[str, Estimate], named: Collection[str]
) -> list[Candidate]:
    """Return the candidates to estimate next, given the estimates of others; none: it is done.

    Args:
        estimates: by key.
        named: knobs that the job gives values for: each of these is looked at.
    """
    searched = [name for name in ALL_AT_ONCE if name not in named]
    families: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        families.setdefault(key_without(candidate, *searched), []).append(candidate)
    waves = (_next_of(family, estimates, searched) for family in families.values())
    return [candidate for wave in waves for candidate in wave]


def _next_of(
    family: list[Candidate], estimates: Mapping[str, Estimate], searched: Collection[str]
) -> list[Candidate]:
    """Return the unknown candidates that generate most at once; none: one that generates more is
    safe."""
    amounts: dict[tuple[int, ...], list[Candidate]] = {}
    for candidate in family:
        values = (candidate.values.get(name) for name in searched)
        amount = tuple(value if isinstance(value, int) else 0 for value in values)
        amounts.setdefault(amount, []).append(candidate)
    for amount in sorted(amounts, reverse=True):
        unknown = [one for one in amounts[amount] if one.key not in estimates]
        if unknown:
            return unknown
        if any(is_safe(estimates[one.key]) for one in amounts[amount]):
            return []
    return []
