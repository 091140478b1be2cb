"""`autotune advise`."""

from typing import Any

import click

from autotune.cli.command import echo, guarded, print_json
from autotune.cli.planned_job import PlannedJob, planned_options
from autotune.errors import EXIT_DONE, EXIT_NOTHING_FITS

MOST_WAYS = 12
"""Ways that are named at most: a plan names three of them."""


@click.command("advise")
@planned_options
@guarded
def command(as_json: bool, **options: Any) -> int:
    """Say what would make JOB fit: the shortest lists of changes, each with what it then takes.

    It is a plan that looks further than three ways. Nothing is downloaded but the model's config,
    and no GPU is needed. JOB is a file or a model, as for `plan`. The exit code is 1 where nothing
    helps.
    """
    from autotune.cli.views.plan import plan_plain
    from autotune.plan.plan import plan
    from autotune.report.plan_answer import plan_lines

    _, answer = PlannedJob.of(options).answer(plan, ways=MOST_WAYS)
    advice = answer.advice
    if as_json:
        print_json(plan_plain(answer, []))
    else:
        echo("\n".join((["It fits as it is."] if advice is None else []) + [*plan_lines(answer)]))
    return EXIT_DONE if advice is None or advice.ways else EXIT_NOTHING_FITS
