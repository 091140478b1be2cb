"""When the search ends, and why. Pure."""

from autotune.job import Budget


def stop_reason(budget: Budget, *, probes: int, seconds: float, candidates_left: int) -> str | None:
    """Why no further probe is started; None while the search goes on."""
    if candidates_left == 0:
        return "every candidate of the space has been probed"
    if probes >= budget.probes:
        return f"the budget of {budget.probes} probes is used"
    if seconds >= budget.minutes * 60:
        return f"the budget of {budget.minutes:g} minutes is used"
    return None
