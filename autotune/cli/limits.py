"""`autotune limits`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from autotune.cli.command import echo, guarded, print_json
from autotune.cli.planned_job import PlannedJob, planned_options
from autotune.errors import EXIT_DONE, EXIT_NOTHING_FITS

if TYPE_CHECKING:
    from autotune.plan.questions.largest import Largest

LARGEST = ("per_device_train_batch_size", "max_length")


@click.command("limits")
@planned_options
@click.option(
    "--of",
    "limit",
    type=click.Choice(LARGEST),
    required=True,
    help="The largest value of this knob that fits.",
)
@guarded
def command(limit: str, as_json: bool, **options: Any) -> int:
    """Say how far JOB can go: its largest micro-batch, or its longest rows.

    Micro-batch and rows are those of the leanest configuration, with what the job pins; `autotune
    plan` says what is fastest.

    Nothing is downloaded but the model's config, and no GPU is needed. JOB is a file or a model, as
    for `plan`. The exit code is 1 where nothing fits.
    """
    from autotune.plan.questions.largest import largest

    job, answer = PlannedJob.of(options).answer(largest, limit)
    if as_json:
        print_json(largest_plain(answer))
    else:
        echo("\n".join(largest_lines(answer, job.devices.total)))
    return EXIT_DONE if answer.value is not None else EXIT_NOTHING_FITS


def largest_plain(answer: "Largest") -> dict[str, Any]:
    """Return what `autotune limits --of KNOB --json` prints."""
    estimate = answer.estimate
    return {
        "schema": 1,
        "knob": answer.knob,
        "value": answer.value,
        "too_large": answer.too_large,
        "device": answer.device,
        "limit_bytes": answer.limit_bytes,
        "knobs": answer.candidate.knobs,
        "estimate": None if estimate is None else estimate.plain(),
        "packages": list(answer.packages),
    }


def largest_lines(answer: "Largest", devices: int) -> Iterator[str]:
    """Yield the largest safe value, and the configuration that it is of."""
    from autotune.report.words import candidate_text, install_text
    from autotune.units import format_bytes

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
