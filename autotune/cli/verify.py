"""`autotune verify`."""

from pathlib import Path

import click

from autotune.cli.echo import echo, print_json
from autotune.cli.job_options import (
    guarded,
    json_option,
    print_notes,
    storage_of,
    storage_option,
)


@click.command("verify")
@click.argument("run", type=click.Path(path_type=Path))
@storage_option("Optuna storage URL of the run, where it has one of its own.")
@json_option
@guarded
def command(run: Path, storage: str | None, as_json: bool) -> int:
    """Launch the bundle of RUN for a few steps on worst batches, through an evaluation and a save,
    and compare with its promise. The exit code is 0 where it holds, 1 where it does not. Files that
    are not what the run emits are not launched (exit code 2).

    RUN may be the folder that `autotune plan --emit` wrote: its configuration is probed first, and
    the launch is held against that. Where it holds, the files lose their mark."""
    from autotune.cli.views.console import PlainConsole
    from autotune.cli.views.terminal import TerminalListener
    from autotune.run.past_run import reopen, verify_again
    from autotune.run.planned_bundle import is_planned, verify_planned

    terminal = TerminalListener(PlainConsole(stderr=True))
    heard = terminal.verification_stage, terminal.waiting
    planned = storage is None and is_planned(run)
    if planned:
        outcome = verify_planned(run, *heard)
    else:
        past = reopen(run, storage_of(storage))
        print_notes(past.notes)
        outcome = verify_again(past, *heard)
    if as_json:
        print_json({"schema": 1, **outcome.plain()})
    else:
        echo(f"{'verified' if outcome.verified else 'NOT verified'}: {outcome.reason}")
        if not outcome.verified and outcome.log is not None:
            echo(f"its log: {outcome.log}", err=True)
    return 0 if outcome.verified else 1
