"""`autotune space show`."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import click

from autotune.cli.echo import print_json
from autotune.cli.guarded import guarded
from autotune.cli.job_options import job_options, json_option, load


@click.group("space")
def command() -> None:
    """Show the search space of a job."""


@command.command("show")
@job_options
@json_option
@guarded
def show(job: Path | None, sets: tuple[str, ...], as_json: bool, **flags: Any) -> int:
    """Show what this machine makes of JOB: its knobs, its candidates, and what is excluded."""
    from autotune.cli.views.console import PlainConsole
    from autotune.cli.views.json import space_plain
    from autotune.cli.views.tables import space_table
    from autotune.probe.single import bound_space

    loaded, definition = load(job, sets, flags)
    # Kept where something goes wrong: the message names a log in it.
    folder = Path(tempfile.mkdtemp(prefix="autotune-space-"))
    space, facts = bound_space(loaded, definition, folder)
    shutil.rmtree(folder, ignore_errors=True)
    if as_json:
        print_json(space_plain(space, facts))
        return 0
    console = PlainConsole(width=120)
    console.print(space_table(space))
    console.print(f"\n{len(space.candidates)} candidates", highlight=False)
    for exclusion in space.exclusions:
        console.print(
            f"excluded {exclusion.count}: {exclusion.reason}", highlight=False, markup=False
        )
    for note in space.notes:
        console.print(f"note: {note}", highlight=False, markup=False, soft_wrap=True)
    return 0
