"""`autotune limits`."""

from typing import Any

import click

from autotune.cli.command import echo, guarded, print_json
from autotune.cli.planned_job import PlannedJob, planned_options, scratch_folder, shown_progress
from autotune.errors import EXIT_DONE, EXIT_NOTHING_FITS

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
    from autotune.cli.views.limits import largest_lines, largest_plain
    from autotune.plan.questions.largest import largest

    planned = PlannedJob.of(options)
    job, definition = planned.loaded()
    with scratch_folder() as folder, shown_progress() as progress:
        answer = largest(
            job,
            definition,
            folder,
            limit,
            device=planned.device,
            assume=planned.assume,
            progress=progress,
        )
    if as_json:
        print_json(largest_plain(answer))
    else:
        echo("\n".join(largest_lines(answer, job.devices.total)))
    return EXIT_DONE if answer.value is not None else EXIT_NOTHING_FITS
