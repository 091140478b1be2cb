"""The end of a search, and its reason. Pure."""

from dataclasses import dataclass

from autotune.job.job import Budget
from autotune.units import format_seconds

LEAST_PROBES = 3
LEAST_GAIN = 0.01
"""Expected gain that is worth a probe where the measurements do not show how long the job is."""


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
) -> str | None:
    """Return why no further probe is started; None while the search goes on.

    Args:
        probes: how many there were.
        seconds: what they took.
        candidates_left: that are neither probed nor ruled out.
        outlook: None: nothing is expected of the next probe (nothing fits yet).
        no_time: why the total budget has no room for another probe; None: it has.
    """
    if candidates_left == 0:
        return "every candidate of the space has been probed or ruled out"
    if probes >= budget.probes:
        return f"the budget of {budget.probes} probes is used"
    if seconds >= budget.minutes * 60:
        return f"the budget of {budget.minutes:g} minutes is used"
    if no_time is not None:
        return no_time
    if probes >= LEAST_PROBES and outlook is not None and not outlook.worth_it:
        return outlook.sentence()
    return None
