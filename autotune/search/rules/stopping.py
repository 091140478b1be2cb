"""The end of a search, and its reason. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.job.job import Budget
from autotune.search.record import Record
from autotune.space.knobs import Candidate
from autotune.units import format_seconds

LEAST_PROBES = 3
LEAST_GAIN = 0.01
"""Expected gain that is worth a probe where the measurements do not show how long the job is."""
_TOLD = ("type", "message", "stage", "knobs")


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """The promise of the next probe.

    Attributes:
        gain: expected relative gain in speed over the fastest that fits.
        job_s: seconds of the whole job as fast as that one; None: not known.
        cost_s: what the next probe is expected to take.
    """

    gain: float
    job_s: float | None
    cost_s: float

    @property
    def worth_it(self) -> bool:
        """True if the next probe is expected to save more than it costs."""
        if self.job_s is None:
            return self.gain > LEAST_GAIN
        return self.gain * self.job_s > self.cost_s

    def sentence(self) -> str:
        """Return why the next probe is not worth its time."""
        if self.job_s is None:
            return f"no candidate is expected to be more than {100 * LEAST_GAIN:.0f}% faster"
        return (
            f"another probe costs about {format_seconds(self.cost_s)} and is expected to save "
            f"{format_seconds(self.gain * self.job_s)} of a job of {format_seconds(self.job_s)}"
        )


def stop_reason(
    budget: Budget,
    *,
    probes: int,
    seconds: float,
    candidates_left: int,
    outlook: Outlook | None = None,
    no_time: str | None = None,
    goes_on: bool = False,
) -> str | None:
    """Return why no further probe is started; None while the search goes on.

    Args:
        probes: how many there were.
        seconds: what they took.
        candidates_left: that are neither probed nor ruled out.
        outlook: None: nothing is expected of the next probe (nothing fits yet).
        no_time: why the total budget has no room for another probe; None: it has.
        goes_on: whether the run was resumed and nothing was probed since.
    """
    if candidates_left == 0:
        return "every candidate of the space has been probed or ruled out"
    limits = (probes, "probes", budget.probes), (seconds / 60, "minutes", budget.minutes)
    for used, name, most in limits:
        if used >= most:
            more = f"; a larger one measures more, such as `budget.{name}={2 * most:.10g}`"
            return f"the budget of {most:.10g} {name} is used{more if goes_on else ''}"
    if no_time is not None:
        return no_time
    if probes >= LEAST_PROBES and outlook is not None and not outlook.worth_it:
        return outlook.sentence()
    return None


def same_crash(records: Sequence[Record], candidates: Sequence[Candidate]) -> str | None:
    """Return that crashes are no matter of the candidates: they say the same, in the same stage,
    of candidates that share no value which others of the space do not have; None: they may be."""
    measured = [(r.candidate, r.measurement) for r in records if r.measurement is not None]
    crashes = [(one, m.failure) for one, m in measured if m.outcome == "crash" and m.failure]
    if not crashes or any(m.tokens_per_s is not None for _, m in measured):
        return None
    kind, message, stage, knobs = told = [crashes[-1][1].get(name) for name in _TOLD]
    alike = [one for one, other in crashes if told == [other.get(name) for name in _TOLD]]
    for name, value in alike[0].values.items():
        shared = all(one.values.get(name) == value for one in alike)
        if shared and any(one.values.get(name) != value for one in candidates):
            return None
    if len(alike) < 2 or knobs:
        return None
    what = f"{len(alike)} candidates without a setting in common crashed alike in stage {stage}"
    return f"{what}: {kind}: {message}"[:400]
