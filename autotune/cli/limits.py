"""`autotune limits`."""

from typing import Any

import click

from autotune.cli.command import echo, guarded, print_json
from autotune.cli.planned_job import PlannedJob, planned_options, scratch_folder, shown_progress
from autotune.errors import EXIT_DONE, EXIT_NOTHING_FITS, user_error

DEVICES = "devices"
COUNTS = (1, 2, 4, 8, 16, 32, 64)
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

    Micro-batch and rows are those of the leanest configuration, with what the job pins; `autotune
    plan` says what is fastest.

    Nothing is downloaded but the model's config, and no GPU is needed. JOB is a file or a model, as
    for `plan`. The exit code is 1 where nothing fits.
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
    if planned.device in (None, "cpu"):
        raise user_error(
            "the fewest devices can only be planned for a kind of GPU",
            where="--of devices",
            hint="add --device with a GPU, such as h100",
        )
    from autotune.facts.machines import Machine, machines_of
    from autotune.report import machines as report

    job, definition = planned.loaded()
    (machine,) = machines_of(str(planned.device))
    rows: list[report.MachineRow] = []
    with shown_progress() as progress:
        for count in COUNTS:
            counted = [Machine(kind=machine.kind, count=count)]
            progress.looking_at(counted[0].name)
            with scratch_folder() as folder:
                rows += report.machine_rows(
                    job, definition, folder, counted, assume=planned.assume, progress=progress
                )
            if rows[-1].safe:
                break
    if all(row.problem for row in rows):
        raise user_error(rows[0].problem or "nothing can be planned", where="--of devices")
    made = report.offers(rows[-1:], None, report.Limits())
    if as_json:
        print_json(report.machines_plain(rows, made, list(report.count_lines(rows))))
    else:
        echo("\n".join(report.count_lines(rows)))
    return EXIT_DONE if rows[-1].safe else EXIT_NOTHING_FITS


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
        echo("\n".join(largest_lines(answer, job.devices.total)))
    return EXIT_DONE if answer.value is not None else EXIT_NOTHING_FITS
