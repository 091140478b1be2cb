"""What a run came to, in sentences. Pure."""

from autotune.report.advice import advice_lines
from autotune.report.candidate_lines import describe_measurement
from autotune.report.sentences import (
    repeat_lines,
    skipped_lines,
    use_sentence,
    verification_line,
)
from autotune.run.session import Result
from autotune.search.recommend import Recommendation, noise_reasons
from autotune.space.knobs import ACCUMULATION, MICRO_BATCH, value_label
from autotune.units import format_bytes

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
