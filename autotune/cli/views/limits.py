"""The largest value of a knob, for people and for programs. Pure."""

from collections.abc import Iterator
from typing import Any

from autotune.plan.questions.largest import Largest
from autotune.report.words import candidate_text, install_text
from autotune.units import format_bytes

SCHEMA = 1


def largest_plain(answer: Largest) -> dict[str, Any]:
    """Return what `autotune limits --of KNOB --json` prints."""
    estimate = answer.estimate
    return {
        "schema": SCHEMA,
        "knob": answer.knob,
        "value": answer.value,
        "too_large": answer.too_large,
        "device": answer.device,
        "limit_bytes": answer.limit_bytes,
        "knobs": answer.candidate.knobs,
        "estimate": None if estimate is None else estimate.plain(),
        "packages": list(answer.packages),
    }


def largest_lines(answer: Largest, devices: int) -> Iterator[str]:
    """Yield the largest safe value, and the configuration that it is of."""
    where = f"{format_bytes(answer.limit_bytes)} on {answer.device}"
    text = candidate_text(answer.candidate, answer.space, devices)
    if answer.value is None or answer.estimate is None:
        yield f"No {answer.knob} is safe in {where}, even with the leanest ({text})."
        return
    peak, p_oom = format_bytes(answer.estimate.peak_memory_bytes), answer.estimate.p_oom
    yield f"{answer.knob}={answer.value} is safe in {where}: {peak}, p(oom) {p_oom:.2f}."
    yield (
        "Larger ones were not tried." if answer.too_large is None else f"{answer.too_large} is not."
    )
    if answer.knob != "max_length" and answer.value > answer.most_rows:
        yield f"The job's global batch has {answer.most_rows} rows for a device."
    if answer.packages:
        yield install_text(answer.packages)
    yield f"That is the leanest configuration: {text}. What the job pins stays as it is."
