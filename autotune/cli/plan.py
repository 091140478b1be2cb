"""`autotune plan`."""

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from autotune.cli.job_options import guarded, print_json, record_option, write_result
from autotune.cli.planned_job import PlannedJob, planned_options, scratch_folder, shown_progress
from autotune.errors import EXIT_INTERRUPTED, EXIT_NOTHING_FITS, user_error

NOW_COMMANDS = {
    "--max": "autotune limits JOB --of {value}",
    "--min-devices": "autotune limits JOB --of devices",
    "--advise": "autotune advise JOB",
}
"""Questions that `plan` answered before they had commands of their own."""


@click.command("plan")
@planned_options
@record_option
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
@click.option(
    "--emit",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Write the bundle of the answer there, marked as not verified. Where nothing is safe, "
    "nothing is written and the exit code is 1.",
)
@click.option("--max", "maximum", hidden=True)
@click.option("--min-devices", is_flag=True, hidden=True)
@click.option("--advise", is_flag=True, hidden=True)
@guarded
def command(
    every: bool,
    fits: bool,
    top: int | None,
    trace_all: bool,
    emit: Path | None,
    record: Path | None,
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
    from autotune.bundle.mark import MARK
    from autotune.plan.engines import EVERY, PROMISING
    from autotune.plan.plan import plan
    from autotune.run.planned_bundle import refuse_used

    planned = PlannedJob.of(options)
    job, definition = planned.loaded()
    if emit is not None:
        refuse_used(emit)
    with scratch_folder() as folder, shown_progress(record) as progress:
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
    bundle = None if emit is None else _emitted(answer, job, emit)
    chosen = [pair for pair in answer.ranked() if pair[1].fits or not fits][:top]
    if record is not None:
        _keep(answer, job, record, _plain(answer, chosen, bundle))
    if as_json:
        print_json(_plain(answer, chosen, bundle))
    else:
        from autotune.cli.views.plan import plan_view

        command = _next_step(planned.job, None if bundle is None else emit)
        _print(plan_view(answer, chosen, command=command, every=every, fits=fits, top=top), every)
        if bundle is not None:
            click.echo(f"bundle: {bundle} ({MARK})")
    if answer.stopped:
        return EXIT_INTERRUPTED
    if emit is not None and bundle is None:
        return EXIT_NOTHING_FITS
    return 0 if any(estimate.fits for estimate in answer.estimates.values()) else 1


def _keep(answer: Any, job: Any, record: Path, plain: dict[str, Any]) -> None:
    """Write down what `--json` prints, and the files of the answer where it is safe."""
    from autotune.run.planned_bundle import emit_plan, unsafe_reason

    write_result(record, plain)
    if unsafe_reason(answer) is None:
        emit_plan(answer, job, record / "bundle")


def _plain(answer: Any, chosen: Any, bundle: Path | None) -> dict[str, Any]:
    """The plan as JSON data, with where its bundle is."""
    from autotune.cli.views.plan import plan_plain

    return {**plan_plain(answer, chosen), "bundle": None if bundle is None else str(bundle)}


def _print(view: Iterable[Any], wide: bool) -> None:
    """Print a plan; where there is no terminal, at 80 columns."""
    from rich.console import Console

    width = None if Console().is_terminal else 160 if wide else 80
    Console(width=width).print(*view, sep="", highlight=False)


def _next_step(job: Path | None, emitted: Path | None) -> str:
    """What goes on from the answer, as a sentence."""
    if emitted is not None:
        folder = shlex.quote(str(emitted))
        return f"`autotune verify {folder}` on the training machine verifies it."
    named = "JOB" if job is None else str(job)
    return f"`autotune run {named}` on the training machine measures and verifies it."


def _emitted(answer: Any, job: Any, folder: Path) -> Path | None:
    """The bundle of a plan's answer, written now; None: nothing is safe, which is said."""
    from autotune.run.planned_bundle import emit_plan, unsafe_reason

    unsafe = unsafe_reason(answer)
    if unsafe is None:
        return emit_plan(answer, job, folder)
    click.echo(f"{folder} was not written: {unsafe}", err=True)
    return None


def _refuse_moved(options: dict[str, Any]) -> None:
    for option, value in options.items():
        if value:
            words = NOW_COMMANDS[option].format(value=value)
            raise user_error(
                "this question has a command of its own", where=option, hint=f"use `{words}`"
            )
