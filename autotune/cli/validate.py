"""`autotune validate`."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import click

from autotune.cli.command import echo, guarded, print_json
from autotune.cli.job_options import job_options, json_option, load


@click.command("validate")
@job_options
@click.option(
    "--space",
    "with_space",
    is_flag=True,
    help="Show what this machine makes of JOB: its knobs, its candidates, and what is excluded. "
    "This looks at model, data and device.",
)
@json_option
@guarded
def command(
    job: Path | None, sets: tuple[str, ...], with_space: bool, as_json: bool, **flags: Any
) -> int:
    """Check JOB and print it resolved, or show its search space.

    Without --space neither model nor data nor device is touched.
    """
    from autotune.job.yaml_file import to_yaml

    loaded, definition = load(job, sets, flags)
    valid = {"schema": 1, "valid": True, "job": loaded.plain()}
    if not with_space:
        if as_json:
            print_json(valid)
        else:
            echo(to_yaml(loaded.plain()), nl=False)
        return 0
    from autotune.cli.views.console import PlainConsole
    from autotune.cli.views.json import space_plain
    from autotune.cli.views.tables import print_space
    from autotune.probe.single import bound_space

    # Kept where something goes wrong: the message names a log in it.
    folder = Path(tempfile.mkdtemp(prefix="autotune-space-"))
    space, facts = bound_space(loaded, definition, folder)
    shutil.rmtree(folder, ignore_errors=True)
    if as_json:
        print_json({**valid, **space_plain(space, facts)})
    else:
        print_space(space, PlainConsole(width=120))
    return 0
