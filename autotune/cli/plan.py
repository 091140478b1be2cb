"""`autotune plan`."""

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from autotune.cli.command import echo, guarded, print_json
from autotune.cli.job_options import all_sets, record_option, write_result
from autotune.cli.planned_job import (
    INSTALLED,
    PlannedJob,
    planned_options,
    scratch_folder,
    shown_progress,
)
from autotune.cli.remote import JOB, plan_there, refuse_local, refuse_used_folder, server_option
from autotune.errors import EXIT_DONE, EXIT_INTERRUPTED, EXIT_NOTHING_FITS, user_error

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
    "--all", "every", is_flag=True, help="Every candidate, also those that no estimate prefers."
)
@click.option(
    "--only-default",
    is_flag=True,
    help="The default candidate alone, pinned knobs as pinned: what the job takes as it stands.",
)
@click.option("--fits", is_flag=True, help="Only what fits.")
@click.option(
    "--trace-all",
    is_flag=True,
    help="Trace DeepSpeed and FSDP for every candidate, not for the most promising only (slow).",
)
@click.option(
    "--top", type=click.IntRange(min=1), help="That many rows, from the first (default: 12)."
)
@click.option(
    "--emit",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Write the bundle of the answer there, marked as not verified. Where nothing is safe, "
    "nothing is written and the exit code is 1.",
)
@server_option("plan it. AUTOTUNE_TOKEN is its token.")
@click.option("--max", "maximum", hidden=True)
@click.option("--min-devices", is_flag=True, hidden=True)
@click.option("--advise", is_flag=True, hidden=True)
@guarded
def command(
    every: bool,
    only_default: bool,
    fits: bool,
    top: int | None,
    trace_all: bool,
    emit: Path | None,
    record: Path | None,
    server: str | None,
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

    With --server a service plans it: model and data have to be where that may read them; only a
    bare config.json goes along.
    """
    _refuse_moved({"--max": maximum, "--min-devices": min_devices, "--advise": advise})
    from autotune.plan.plan import plan
    from autotune.plan.trace_choice import EVERY, PROMISING

    planned = PlannedJob.of(options)
    if server is not None:
        return _by_server(server, planned, emit, as_json, only_default)
    job, definition = planned.loaded()
    refuse_used_folder(emit)
    with scratch_folder() as folder, shown_progress(record) as progress:
        answer = plan(
            job,
            definition,
            folder,
            device=planned.device,
            assume=planned.assume,
            only_default=only_default or planned.job is None,
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
        view = plan_view(answer, chosen, command=command, every=every, fits=fits, top=top)
        _print(view, every, bundle)
    if answer.stopped:
        return EXIT_INTERRUPTED
    return EXIT_NOTHING_FITS if emit is not None and bundle is None else _code(answer)


def _code(answer: Any) -> int:
    fits = any(estimate.fits for estimate in answer.estimates.values())
    return EXIT_DONE if fits else EXIT_NOTHING_FITS


def _by_server(
    server: str, planned: PlannedJob, emit: Path | None, as_json: bool, only_default: bool
) -> int:
    refuse_local({*JOB, "device", "devices", "nodes", "stack", "emit", "only_default"})
    sets = all_sets(planned.completed(), planned.flags)
    stack = "any" if planned.assume else INSTALLED
    there = {"device": planned.device, "stack": stack}
    alone = only_default or planned.job is None
    return plan_there(
        server, planned.job, sets, emit=emit, as_json=as_json, only_default=alone, **there
    )


def _keep(answer: Any, job: Any, record: Path, plain: dict[str, Any]) -> None:
    """Write down what `--json` prints, and the files of the answer where it is safe."""
    from autotune.run.planned_bundle import emit_plan, unsafe_reason

    write_result(record, plain)
    if unsafe_reason(answer) is None:
        emit_plan(answer, job, record / "bundle")


def _plain(answer: Any, chosen: Any, bundle: Path | None) -> dict[str, Any]:
    """Return the plan as JSON data, with where its bundle is."""
    from autotune.cli.views.plan import plan_plain

    return {**plan_plain(answer, chosen), "bundle": None if bundle is None else str(bundle)}


def _print(view: Iterable[Any], wide: bool, bundle: Path | None) -> None:
    """Print a plan; where there is no terminal, at 80 columns."""
    from autotune.bundle.mark import MARK
    from autotune.cli.views.console import PlainConsole

    width = None if PlainConsole().is_terminal else 160 if wide else 80
    PlainConsole(width=width).print(*view, sep="", highlight=False)
    if bundle is not None:
        echo(f"bundle: {bundle} ({MARK})")


def _next_step(job: Path | None, emitted: Path | None) -> str:
    """Return what goes on from the answer, as a sentence."""
    if emitted is not None:
        folder = shlex.quote(str(emitted))
        return f"`autotune verify {folder}` on the training machine verifies it."
    named = "JOB" if job is None else str(job)
    return f"`autotune run {named}` on the training machine measures and verifies it."


def _emitted(answer: Any, job: Any, folder: Path) -> Path | None:
    """Return the bundle of a plan's answer, written now; None: nothing is safe, which is said."""
    from autotune.run.planned_bundle import emit_plan, unsafe_reason

    unsafe = unsafe_reason(answer)
    if unsafe is None:
        return emit_plan(answer, job, folder)
    echo(f"{folder} was not written: {unsafe}", err=True)
    return None


def _refuse_moved(options: dict[str, Any]) -> None:
    for option, value in options.items():
        if value:
            words = NOW_COMMANDS[option].format(value=value)
            raise user_error(
                "this question has a command of its own", where=option, hint=f"use `{words}`"
            )
