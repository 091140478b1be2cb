"""`autotune probe`."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import click

from autotune.cli.echo import echo, print_json
from autotune.cli.guarded import guarded
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
    from autotune.cli.views.terminal import waiting_text
    from autotune.probe.single import probe_once
    from autotune.process.device_lock import devices_locked

    loaded, definition = load(job, sets, flags)
    # Kept where something goes wrong: the message names a log in it.
    folder = Path(tempfile.mkdtemp(prefix="autotune-probe-"))
    with devices_locked(loaded.devices, folder, lambda who: echo(waiting_text(who), err=True)):
        candidate, measurement = probe_once(loaded, definition, folder)
    shutil.rmtree(folder, ignore_errors=True)
    if as_json:
        print_json(probe_plain(candidate, measurement))
    else:
        PlainConsole().print(measurement_table(candidate, measurement))
    return 0 if measurement.outcome == "ok" else 1
