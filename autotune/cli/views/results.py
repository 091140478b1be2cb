"""What a run came to, in sentences. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median

from autotune.cli.views.advice import advice_lines
from autotune.cli.views.tables import describe_measurement
from autotune.cli.views.words import candidate_text
from autotune.run.session import Result
from autotune.run.stored import StoredEnding
from autotune.run.verdict import Verification
from autotune.search.recommend import Recommendation
from autotune.search.record import Record
from autotune.search.repeats import repeatability
from autotune.space.knobs import ACCUMULATION, MICRO_BATCH, value_label
from autotune.units import format_bytes, format_seconds, format_speed

_TITLES = {
    "recommended": "recommended",
    "interrupted": "best so far",
    "nothing_stable": "not stable",
}


def result_lines(result: Result, bundle: str) -> list[str]:
    """The end of a run, as lines of text."""
    if result.outcome == "nothing_fits":
        return [*_nothing_fits_lines(result), *_untold_lines(result)]
    if result.nothing_measured is not None:
        first, *hints = result.nothing_measured.render().splitlines()
        title = _TITLES.get(result.outcome, "nothing was measured")
        return [f"{title}: {first}", *hints, *_untold_lines(result)]
    if result.recommendation is None:
        return ["no stable candidate has been measured yet"]
    chosen = result.recommendation.chosen
    failed = result.verification is not None and not result.verification.verified
    verification = verification_line(result.verification)
    lines = [verification] if failed else []  # before what looks like an answer
    lines += _answer_lines(result, result.recommendation)
    lines += [f"{_TITLES[result.outcome]}: probe {chosen.number}"]
    lines += [
        f"  {name}: {value_label(value)}" for name, value in sorted(chosen.candidate.knobs.items())
    ]
    lines += [f"- {reason}" for reason in result.recommendation.reasons]
    lines += [f"- {line}" for line in search_lines(result)]
    lines += _untold_lines(result)
    if result.outcome == "recommended":
        lines += [*([] if failed else [verification]), f"bundle: {bundle}"]
    return lines


def _answer_lines(result: Result, recommendation: Recommendation) -> list[str]:
    """What to use, as a plan says it, with what was measured."""
    chosen = recommendation.chosen
    if result.space is None:
        return []
    noise, allowed = chosen.measurement.relative_uncertainty, recommendation.allowed_bytes
    error = "" if noise is None else f", +-{100 * noise:.1f}%"
    limit = "" if allowed is None else f" of {format_bytes(allowed)}"
    tokens = chosen.measurement.tokens_per_epoch
    epoch = f"; an epoch takes {format_seconds(tokens / chosen.tokens_per_s)}" if tokens else ""
    text = candidate_text(chosen.candidate, result.space, result.devices)
    return [
        f"Use {text}: {format_speed(chosen.tokens_per_s)} (measured{error}), "
        f"{format_bytes(chosen.peak_memory_bytes)}{limit}{epoch}."
    ]


def _untold_lines(result: Result) -> list[str]:
    """What no probe tells."""
    left_out = [f"left out for lack of budget: {text}" for text in result.left_out]
    return [f"- {line}" for line in (*(v.sentence() for v in result.unprobed), *left_out)]


def verification_line(verification: Verification | None) -> str:
    """Whether a bundle has been launched, and what came of it; None: it has not."""
    if verification is None:
        return "NOT verified: it was not launched yet; `autotune verify` launches it"
    return f"{'verified' if verification.verified else 'NOT verified'}: {verification.reason}"


def search_lines(result: Result) -> list[str]:
    """What the search saved, what it needed no probe for, and how well its probes repeat."""
    lines = [] if result.saving is None else [result.saving.sentence()]
    return [*lines, *skipped_lines(result.skipped), *repeat_lines(result.records)]


def skipped_lines(skipped: Mapping[str, str]) -> list[str]:
    """Why candidates needed no probe."""
    counts = Counter(skipped.values())
    return [f"no probe needed for {n} candidate(s): {reason}" for reason, n in counts.items()]


def repeat_lines(records: Sequence[Record]) -> list[str]:
    """How far probes of the same candidate were apart."""
    repeats = repeatability(records)
    if repeats.measured_sd is None:
        return []
    return [
        f"probes of one candidate differ by {100 * repeats.measured_sd:.1f}% (standard deviation, "
        f"{repeats.repeats} repeated)"
    ]


def cost_lines(records: Sequence[Record]) -> list[str]:
    """Where the time of a probe goes: medians over those that ended ok."""
    ended = (m for r in records if (m := r.measurement) is not None and m.outcome == "ok")
    measurements = [m for m in ended if m.stages_s]
    if not measurements:
        return []
    names = ("build", "train")
    seconds = {name: median(m.stages_s.get(name, 0.0) for m in measurements) for name in names}
    rest = median(m.seconds - sum(m.stages_s.get(n, 0.0) for n in names) for m in measurements)
    return [
        f"a probe took {median(m.seconds for m in measurements):.1f} s (median): "
        f"{seconds['build']:.2f} s to build the model and the trainer, {seconds['train']:.1f} s of "
        f"training steps, {rest:.2f} s for everything else"
    ]


def ending_lines(ending: StoredEnding | None) -> list[str]:
    """Why the search ended, and what it saved."""
    if ending is None:
        return []
    saving = ending.saving
    return [
        f"the search ended: {ending.stop_reason}",
        *([] if saving is None else [saving.sentence()]),
    ]


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
