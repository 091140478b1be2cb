"""What a run was like, and what it came to, in sentences. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence

from autotune.report.plan_answer import advice_lines
from autotune.report.words import candidate_text, describe_measurement
from autotune.run.session import Result
from autotune.run.stored import StoredEnding
from autotune.run.verdict import Verification
from autotune.search.recommend import Ranked, Recommendation, noise_reasons
from autotune.search.record import Record
from autotune.search.repeats import repeatability
from autotune.space.bind import SearchSpace
from autotune.space.knobs import ACCUMULATION, MICRO_BATCH, value_label
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


_TITLES = {
    "recommended": "recommended",
    "interrupted": "best so far",
    "nothing_stable": "not stable",
}


def result_lines(result: Result, bundle: str) -> list[str]:
    """Return the end of a run, as lines of text."""
    if result.outcome == "nothing_fits":
        return [*_nothing_fits_lines(result), *_untold_lines(result)]
    if result.nothing_measured is not None:
        first, *hints = result.nothing_measured.render().splitlines()
        title = _TITLES.get(result.outcome, "nothing was measured")
        return [f"{title}: {first}", *hints, *_untold_lines(result)]
    if result.recommendation is None:
        return ["no stable candidate has been measured yet"]
    chosen = result.recommendation.chosen
    failed = result.verification is not None and not result.verification.holds
    verification = verification_line(result.verification)
    lines = list(noise_reasons(result.recommendation.noise))
    lines += [verification] if failed else []  # before what looks like an answer
    lines += _answer_lines(result, result.recommendation)
    lines += [f"{_TITLES[result.outcome]}: probe {chosen.number}"]
    lines += [
        f"  {name}: {value_label(value)}" for name, value in sorted(chosen.candidate.knobs.items())
    ]
    lines += [f"- {reason}" for reason in result.recommendation.reasons if reason not in lines]
    lines += [f"- {line}" for line in search_lines(result)]
    lines += _untold_lines(result)
    if result.outcome == "recommended":
        lines += [*([] if failed else [verification]), f"bundle: {bundle}"]
    return lines


def _answer_lines(result: Result, recommendation: Recommendation) -> list[str]:
    """Return the recommendation in a plan's words, with its measurement."""
    if result.space is None:
        return []
    chosen, allowed = recommendation.chosen, recommendation.allowed_bytes
    return [use_sentence(chosen, allowed, result.space, result.devices, result.verification)]


def _untold_lines(result: Result) -> list[str]:
    """Return the lines on values that no probe has measured."""
    left_out = [f"left out for lack of budget: {text}" for text in result.left_out]
    return [f"- {line}" for line in (*(v.sentence() for v in result.unprobed), *left_out)]


def search_lines(result: Result) -> list[str]:
    """Return the lines on the search's saving, its unneeded probes, and its repeatability."""
    lines = [] if result.saving is None else [result.saving.sentence()]
    return [*lines, *skipped_lines(result.skipped), *repeat_lines(result.records)]


def _nothing_fits_lines(result: Result) -> list[str]:
    nothing = result.nothing_fits
    assert nothing is not None
    lines = ["nothing fits", *([] if nothing.why is None else [f"- {nothing.why}"])]
    if nothing.nearest is None or nothing.short_bytes is None:
        for reason, numbers in nothing.rejected.items():
            lines.append(f"- {reason}: probe {', '.join(map(str, numbers))}")
        return lines
    at_least = "at least " if nothing.short_is_lower_bound else ""
    knobs = nothing.nearest.candidate
    lines.append(
        f"nearest: probe {nothing.nearest.number} "
        f"({knobs[MICRO_BATCH]}x{knobs.knobs[ACCUMULATION]}), "
        f"{at_least}{format_bytes(nothing.short_bytes)} short"
    )
    fitting = [change for change in result.tried if change.fits]
    for change in fitting:
        lines.append(f"- fits with {change.text}: {describe_measurement(change.measurement)}")
    if result.tried and not fitting:
        texts = "; ".join(change.text for change in result.tried)
        lines.append(f"- no single change made it fit; tried: {texts}")
    if result.advice is not None:
        lines += advice_lines(result.advice)
    return lines
