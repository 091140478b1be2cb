"""`autotune probe`."""

from pathlib import Path
from typing import Any

import click

from autotune.cli.command import echo, guarded, print_json
from autotune.cli.job_options import job_options, json_option, load


@click.command("probe")
@job_options
@json_option
@guarded
def command(job: Path | None, sets: tuple[str, ...], as_json: bool, **flags: Any) -> int:
    """Measure one candidate of JOB: the knobs that `--set` names, defaults for the rest.

    The exit code is 0 where the candidate ran, 1 where it did not, or others took the cores.
    """
    from autotune.cli.views.console import PlainConsole
    from autotune.cli.views.json import probe_plain
    from autotune.cli.views.tables import measurement_table
    from autotune.probe.single import probe_alone
    from autotune.report.run_lines import waiting_text

    loaded, definition = load(job, sets, flags)
    candidate, measurement = probe_alone(
        loaded, definition, lambda who: echo(waiting_text(who), err=True)
    )
    if as_json:
        print_json(probe_plain(candidate, measurement))
    else:
        PlainConsole().print(measurement_table(candidate, measurement))
    return 0 if measurement.outcome == "ok" else 1
