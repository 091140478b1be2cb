"""`autotune verify`."""

from pathlib import Path

import click

from autotune.cli.command import echo, guarded, print_json
from autotune.cli.job_options import json_option, print_notes
from autotune.errors import user_error
from autotune.units import format_seconds, parse_seconds


@click.command("verify")
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--soak",
    metavar="DURATION",
    help="If the bundle holds, train it for this long, such as 10m, to see whether "
    "memory creeps or speed decays.",
)
@json_option
@guarded
def command(run: Path, soak: str | None, as_json: bool) -> int:
    """Launch the bundle of RUN for a few steps on worst batches, through an evaluation and a save,
    and compare with its promise. The exit code is 0 where it is verified, 1 where it is not (a run
    with --accept-noise never is). Files that are not what the run emits are not launched (exit code
    2).

    RUN may be the folder that `autotune plan --emit` wrote: its configuration is probed first, and
    the launch is held against that. Where it holds, the files lose their mark."""
    from autotune.cli.views.live import run_view
    from autotune.run.past_run import reopen, verify_again
    from autotune.run.planned_bundle import is_planned, verify_planned

    soak_s = _seconds(soak)
    past = None
    if not is_planned(run):
        past = reopen(run)
        print_notes(past.notes)
    method = None if past is None else past.job.method
    with run_view(verifying=str(run), method=method) as view:
        heard = view.verification_stage, view.waiting
        if past is None:
            outcome = verify_planned(run, *heard, soak_s)
        else:
            outcome = verify_again(past, *heard, soak_s)
    if as_json:
        print_json({"schema": 1, **outcome.plain()})
    else:
        echo(f"{'verified' if outcome.verified else 'NOT verified'}: {outcome.reason}")
        if not outcome.verified and outcome.log is not None:
            echo(f"its log: {outcome.log}", err=True)
    return 0 if outcome.verified else 1


def _seconds(soak: str | None) -> float:
    """Return how long a soak is to take, in seconds; 0 without one.

    Raises:
        UserError: it is no duration, too short to tell anything, or too long.
    """
    if soak is None:
        return 0.0
    from autotune.run.soak import LEAST_S, MOST_S

    try:
        seconds = parse_seconds(soak)
    except ValueError as error:
        raise user_error(str(error), where="--soak") from None
    if not LEAST_S <= seconds <= MOST_S:
        what = f"`{soak}` is not between {format_seconds(LEAST_S)} and {format_seconds(MOST_S)}"
        raise user_error(what, where="--soak", hint="try 10m")
    return seconds
