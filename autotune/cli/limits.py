"""`autotune limits`."""

from typing import Any

import click

from autotune.cli.command import echo, guarded, print_json
from autotune.cli.planned_job import PlannedJob, planned_options, scratch_folder, shown_progress
from autotune.errors import user_error

DEVICES = "devices"
LARGEST = ("per_device_train_batch_size", "max_length")


@click.command("limits")
@planned_options
@click.option(
    "--of",
    "limit",
    type=click.Choice((*LARGEST, DEVICES)),
    required=True,
    help="The largest value of this knob that fits; or how few devices would do.",
)
@guarded
def command(limit: str, as_json: bool, **options: Any) -> int:
    """Say how far JOB can go: its largest micro-batch, its longest rows, its fewest devices.

    Micro-batch and rows are those of one candidate: TRL's defaults, and what the job pins. To ask
    about the answer of a plan, pin what it says with `--set`. Of devices every candidate is tried.

    Nothing is downloaded but the model's config, and no GPU is needed. Without JOB, `--model`,
    `--max-length` and `--set` describe it. The exit code is 1 where nothing fits.
    """
    planned = PlannedJob.of(options)
    if limit == DEVICES:
        return _fewest(planned, as_json)
    return _largest(planned, limit, as_json)


def _fewest(planned: PlannedJob, as_json: bool) -> int:
    if planned.devices is not None or planned.nodes is not None:
        raise user_error(
            "`--of devices` looks for their number on one machine",
            where="--nodes" if planned.devices is None else "--devices",
            hint="leave it out",
        )
    from autotune.cli.views.limits import fewest_lines, fewest_plain
    from autotune.plan.questions.fewest_devices import fewest

    job, definition = planned.loaded()
    with scratch_folder() as folder, shown_progress() as progress:
        counts = fewest(
            job,
            definition,
            folder,
            device=planned.device,
            assume=planned.assume,
            progress=progress,
        )
    if as_json:
        print_json(fewest_plain(counts))
    else:
        echo("\n".join(fewest_lines(counts)))
    return 0 if counts[-1].safe else 1


def _largest(planned: PlannedJob, knob: str, as_json: bool) -> int:
    from autotune.cli.views.limits import largest_lines, largest_plain
    from autotune.plan.questions.largest import largest

    job, definition = planned.loaded()
    with scratch_folder() as folder, shown_progress() as progress:
        answer = largest(
            job,
            definition,
            folder,
            knob,
            device=planned.device,
            assume=planned.assume,
            progress=progress,
        )
    if as_json:
        print_json(largest_plain(answer))
    else:
        echo("\n".join(largest_lines(answer)))
    return 0 if answer.value is not None else 1
