"""The MFU of a speed in words: of which peak, and what is usual there. Pure."""

from autotune.facts import Facts
from autotune.facts.utilisation import Peak, mfu_of, peak_of, reached_on
from autotune.job.job import Job


def mfu_line(job: Job, facts: Facts, tokens_per_s: float | None) -> str | None:
    """Return the sentence on the MFU of a speed, and on what is usual; None: it is not known."""
    mfu, peak = mfu_of(job, facts, tokens_per_s), peak_of(facts)
    if mfu is None or peak is None:
        return None
    devices = f"{job.devices.total} x " if job.devices.total > 1 else ""
    of = f"{devices}{peak.flops_per_s / 1e12:.4g} TFLOP/s, the dense peak in {peak.dtype}"
    return f"{mfu_text(mfu)} of {of}; {usual_text(job, facts, peak, mfu)}."


def mfu_text(mfu: float) -> str:
    """Return a share of the peak: `MFU 41%`."""
    return f"MFU {mfu:.0%}" if mfu >= 0.01 else "MFU below 1%"


def usual_text(job: Job, facts: Facts, peak: Peak, mfu: float) -> str:
    """Return what runs like a job reached on its kind of device, or on the nearest, and whether an
    MFU is outside of that."""
    usual = reached_on(peak.kind, job, facts.model)
    if usual is None:
        return f"no run like it is recorded on {peak.kind.name} or its architecture"
    near = "" if usual.kind == peak.kind.name else ", the nearest kind that is recorded,"
    tuning = "full tuning" if usual.tuning == "full" else "adapters"
    outside = ": this is more than any of them" if mfu > usual.high else ""
    outside = ": this is less than any of them" if mfu < usual.low else outside
    return (
        f"{usual.runs} published and recorded runs on one {usual.kind}{near} ({tuning}, models of "
        f"{usual.size}) reached {100 * usual.low:.0f} to {usual.high:.0%}"
        f"{outside}"
    ).replace("models of below", "models below")
