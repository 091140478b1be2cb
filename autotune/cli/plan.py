"""`autotune plan`."""

from typing import Any

import click

from autotune.cli.job_options import guarded, print_json
from autotune.cli.planned_job import PlannedJob, planned_options, scratch_folder, shown_progress
from autotune.errors import EXIT_INTERRUPTED, user_error

NOW_COMMANDS = {
    "--max": "autotune limits JOB --of {value}",
    "--min-devices": "autotune limits JOB --of devices",
    "--advise": "autotune advise JOB",
}
"""Questions that `plan` answered before they had commands of their own."""


@click.command("plan")
@planned_options
@click.option(
    "--all", "every", is_flag=True, help="Every candidate, those that no estimate prefers, too."
)
@click.option("--fits", is_flag=True, help="Only what fits.")
@click.option(
    "--trace-all",
    is_flag=True,
    help="Trace DeepSpeed and FSDP for every candidate, not for the most promising only (slow).",
)
@click.option("--top", type=click.IntRange(min=1), help="Only the first so many rows.")
@click.option("--max", "maximum", hidden=True)
@click.option("--min-devices", is_flag=True, hidden=True)
@click.option("--advise", is_flag=True, hidden=True)
@guarded
def command(
    every: bool,
    fits: bool,
    top: int | None,
    trace_all: bool,
    maximum: str | None,
    min_devices: bool,
    advise: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Say what to use for JOB, and why, before anything runs on the device.

    Nothing is downloaded but the model's config, and no GPU is needed. Without JOB, `--model`,
    `--max-length` and `--set` describe one candidate. The exit code is 1 where nothing fits.
    Ctrl-C ends it with what is known by then, and with exit code 130.
    """
    _refuse_moved({"--max": maximum, "--min-devices": min_devices, "--advise": advise})
    from autotune.plan.engines import EVERY, PROMISING
    from autotune.plan.plan import plan

    planned = PlannedJob.of(options)
    job, definition = planned.loaded()
    with scratch_folder() as folder, shown_progress() as progress:
        answer = plan(
            job,
            definition,
            folder,
            device=planned.device,
            assume=planned.assume,
            only_default=planned.job is None,
            whole_space=every,
            effort=EVERY if trace_all else PROMISING,
            progress=progress,
        )
    pairs = [(candidate, estimate) for candidate, estimate in answer.ranked()]
    chosen = [pair for pair in pairs if pair[1].fits or not fits][:top]
    if as_json:
        from autotune.cli.views.plan import plan_plain

        print_json(plan_plain(answer, chosen))
    else:
        from rich.console import Console

        from autotune.cli.views.plan import plan_view

        width = None if Console().is_terminal else 160 if every else 80
        named = "JOB" if planned.job is None else str(planned.job)
        command = f"`autotune run {named}` on the training machine measures and verifies it."
        view = plan_view(answer, chosen, command=command, every=every, fits=fits, top=top)
        Console(width=width).print(*view, sep="", highlight=False)
    if answer.unfinished:
        return EXIT_INTERRUPTED
    return 0 if any(estimate.fits for estimate in answer.estimates.values()) else 1


def _refuse_moved(options: dict[str, Any]) -> None:
    for option, value in options.items():
        if value:
            words = NOW_COMMANDS[option].format(value=value)
            raise user_error(
                "this question has a command of its own", where=option, hint=f"use `{words}`"
            )
