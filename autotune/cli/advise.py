"""`autotune advise`."""

from typing import Any

import click

from autotune.cli.command import echo, guarded, print_json
from autotune.cli.planned_job import PlannedJob, planned_options, scratch_folder, shown_progress


@click.command("advise")
@planned_options
@guarded
def command(as_json: bool, **options: Any) -> int:
    """Say what would make JOB fit: the shortest lists of changes, each with its price in speed.

    Nothing is downloaded but the model's config, and no GPU is needed. Without JOB, `--model`,
    `--max-length` and `--set` describe it. The exit code is 1 where nothing helps.
    """
    from autotune.plan.questions.advice import advise
    from autotune.report.advice import advice_lines, advice_plain

    planned = PlannedJob.of(options)
    job, definition = planned.loaded()
    with scratch_folder() as folder, shown_progress() as progress:
        advice = advise(
            job,
            definition,
            folder,
            device=planned.device,
            assume=planned.assume,
            progress=progress,
        )
    if as_json:
        print_json(advice_plain(advice))
    else:
        echo("\n".join(advice_lines(advice)))
    return 0 if advice.safe or advice.ways else 1
