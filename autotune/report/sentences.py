"""What a run was like, in sentences. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence

from autotune.report.words import candidate_text
from autotune.run.stored import StoredEnding
from autotune.run.verdict import Verification
from autotune.search.recommend import Ranked
from autotune.search.record import Record
from autotune.search.repeats import repeatability
from autotune.space.bind import SearchSpace
from autotune.units import format_bytes, format_seconds, format_speed

NOTABLE_DIFFERENCE = 0.05
"""A launch whose speed differs from its probe by less is not mentioned: it times a few steps."""


def use_sentence(
    chosen: Ranked,
    allowed_bytes: int | None,
    space: SearchSpace,
    devices: int,
    verification: Verification | None = None,
) -> str:
    """Return the recommendation with its measurement.

    Args:
        verification: where its launch was slower or faster by more than the noise of the probes,
            this is said, with the epoch that follows.
    """
    noise, tokens = chosen.measurement.relative_uncertainty, chosen.measurement.tokens_per_epoch
    error = "" if noise is None else f", +-{100 * noise:.1f}%"
    limit = "" if allowed_bytes is None else f" of {format_bytes(allowed_bytes)}"
    epoch = f"; an epoch takes {format_seconds(tokens / chosen.tokens_per_s)}" if tokens else ""
    launched = None if verification is None else _launched_share(verification, chosen)
    if launched is not None and abs(launched - 1) > max(noise or 0.0, NOTABLE_DIFFERENCE):
        error += f"; its launch ran at {100 * launched:.0f}% of that"
        if tokens:
            epoch += f", {format_seconds(tokens / chosen.tokens_per_s / launched)} as launched"
    text = candidate_text(chosen.candidate, space, devices)
    return (
        f"Use {text}: {format_speed(chosen.tokens_per_s)} (measured{error}), "
        f"{format_bytes(chosen.peak_memory_bytes)}{limit}{epoch}."
    )


def _launched_share(verification: Verification, chosen: Ranked) -> float | None:
    """Return the speed of the launch over that of the answer, which pools what was probed after it,
    too; None: not known."""
    ratio, promised = verification.speed_against_promise, verification.promised_tokens_per_s
    return None if ratio is None or promised is None else ratio * promised / chosen.tokens_per_s


def verification_line(verification: Verification | None) -> str:
    """Return whether a bundle has been launched, and what came of it; None: it has not."""
    if verification is None:
        return "NOT verified: it was not launched yet; `autotune verify` launches it"
    return f"{'verified' if verification.verified else 'NOT verified'}: {verification.reason}"


def skipped_lines(skipped: Mapping[str, str]) -> list[str]:
    """Return why candidates needed no probe."""
    counts = Counter(skipped.values())
    return [f"no probe needed for {n} candidate(s): {reason}" for reason, n in counts.items()]


def repeat_lines(records: Sequence[Record]) -> list[str]:
    """Return how far probes of the same candidate were apart."""
    repeats = repeatability(records)
    if repeats.measured_sd is None:
        return []
    return [
        f"probes of one candidate differ by {100 * repeats.measured_sd:.1f}% (standard deviation, "
        f"{repeats.repeats} repeated)"
    ]


def ending_lines(ending: StoredEnding | None) -> list[str]:
    """Return why the search ended, and what it saved."""
    if ending is None:
        return []
    saving = ending.saving
    return [
        f"the search ended: {ending.stop_reason}",
        *([] if saving is None else [saving.sentence()]),
    ]
