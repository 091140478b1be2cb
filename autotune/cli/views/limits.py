"""The largest value of a knob, and how few devices would do, for people and for programs. Pure."""

from collections.abc import Iterator, Sequence
from typing import Any

from autotune.estimate.estimate import Estimate
from autotune.plan.choices import leanness
from autotune.plan.questions.fewest_devices import Tried
from autotune.plan.questions.largest import Largest
from autotune.report.candidate_lines import describe
from autotune.report.words import install_text
from autotune.space.knobs import value_label
from autotune.units import format_bytes

SCHEMA = 1


def fewest_plain(tried: Sequence[Tried]) -> dict[str, Any]:
    """Return what `autotune limits --of devices --json` prints."""
    return {
        "schema": SCHEMA,
        "devices": tried[-1].devices if tried[-1].safe else None,
        "possible": next((count.devices for count in tried if count.fits), None),
        "tried": [_plain(count) for count in tried],
    }


def _plain(count: Tried) -> dict[str, Any]:
    if count.plan is None:
        problem = count.problem
        return {"devices": count.devices, "fits": False, "safe": False, "problem": problem}
    candidate, estimate = _shown(count)
    return {
        "devices": count.devices,
        "fits": count.fits,
        "safe": count.safe,
        "knobs": dict(candidate.knobs),
        "estimate": estimate.plain(),
        "limit_bytes": count.plan.limit_bytes,
        "left_out": list(count.left_out),
        "packages": list(count.packages),
    }


def fewest_lines(tried: Sequence[Tried]) -> Iterator[str]:
    """Yield a line for each number of devices; of the one that does, the fastest candidate."""
    for one in tried:
        count = f"{one.devices} device{'s' if one.devices > 1 else ''}"
        if one.plan is None:
            yield f"{count}: cannot be: {one.problem}"
            continue
        candidate, estimate = _shown(one)
        label = describe(candidate, [knob.name for knob in one.plan.space.free_knobs])
        room = f"of {format_bytes(one.plan.limit_bytes)} on each"
        if not one.fits:
            peak = format_bytes(estimate.peak_memory_bytes)
            yield f"{count}: nothing fits; the least takes {peak} {room} ({label})"
            continue
        speed = estimate.tokens_per_s
        speed_text = f", {speed:.0f} tokens/s on all" if speed is not None else ""
        peak = format_bytes(estimate.peak_memory_bytes)
        word = "is safe" if one.safe else f"may fit, with p(oom) {estimate.p_oom:.2f}"
        yield f"{count}: {word}; the fastest takes {peak} {room}{speed_text}"
        yield f"  {label}"
        if one.packages:
            yield f"  {install_text(one.packages)}"
        if one.left_out:
            yield f"  without {', '.join(one.left_out)}: there is nothing to divide"
        pinned = {n: v for n, v in candidate.values.items() if len(_values(one, n)) > 1}
        yield "  " + " ".join(f"--set {n}={value_label(v)}" for n, v in sorted(pinned.items()))
    if not tried[-1].safe:
        yield "more of them were not tried: `autotune advise` says what else would help"


def _values(count: Tried, name: str) -> tuple[Any, ...]:
    assert count.plan is not None
    return next((knob.values for knob in count.plan.space.knobs if knob.name == name), ())


def _shown(count: Tried) -> tuple[Any, Any]:
    """Return the fastest that fits, or the leanest."""
    assert count.plan is not None
    ranked = count.plan.ranked()
    return ranked[0] if count.fits else min(ranked, key=leanness)


def largest_plain(answer: Largest) -> dict[str, Any]:
    """Return what `autotune limits --of KNOB --json` prints."""
    estimate, possible = answer.estimate, answer.possible_estimate
    return {
        "schema": SCHEMA,
        "knob": answer.knob,
        "value": answer.value,
        "possible": answer.possible,
        "too_large": answer.too_large,
        "device": answer.device,
        "limit_bytes": answer.limit_bytes,
        "estimate": None if estimate is None else estimate.plain(),
        "possible_estimate": None if possible is None else possible.plain(),
        "packages": list(answer.packages),
    }


def largest_lines(answer: Largest) -> Iterator[str]:
    """Yield what is safe, what is merely possible, and of which candidate that is said."""
    where = f"{format_bytes(answer.limit_bytes)} on {answer.device}"
    if answer.value is None or answer.estimate is None:
        yield f"No {answer.knob} is safe in {where}."
    else:
        yield f"{answer.knob}={answer.value} is safe in {where}: {_takes(answer.estimate)}."
    if answer.possible is not None and answer.possible_estimate is not None:
        yield f"{answer.possible} may fit: {_takes(answer.possible_estimate)}."
    yield "Larger ones were not tried." if answer.bounded else f"{answer.too_large} does not fit."
    largest = max(answer.value or 0, answer.possible or 0)
    if answer.knob != "max_length" and largest > answer.most_rows:
        yield f"The job's global batch has {answer.most_rows} rows for a device."
    if answer.packages:
        yield install_text(answer.packages)
    yield "Looked at: TRL's defaults with what the job pins. `autotune plan` compares the others."


def _takes(estimate: Estimate) -> str:
    return f"{format_bytes(estimate.peak_memory_bytes)}, p(oom) {estimate.p_oom:.2f}"
