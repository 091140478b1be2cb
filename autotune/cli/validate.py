"""`autotune validate`."""

from pathlib import Path
from typing import Any

import click

from autotune.cli.echo import echo, print_json
from autotune.cli.guarded import guarded
from autotune.cli.job_options import job_options, json_option, load


@click.command("validate")
@job_options
@json_option
@guarded
def command(job: Path | None, sets: tuple[str, ...], as_json: bool, **flags: Any) -> int:
    """Check JOB without touching model, data or device, and print it resolved."""
    from autotune.job.yaml_file import to_yaml

    loaded, _ = load(job, sets, flags)
    if as_json:
        print_json({"schema": 1, "valid": True, "job": loaded.plain()})
    else:
        echo(to_yaml(loaded.plain()), nl=False)
    return 0
