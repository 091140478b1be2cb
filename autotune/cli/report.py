"""`autotune report`."""

import os
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from autotune.cli.command import echo, guarded, print_json
from autotune.cli.job_options import json_option, print_notes, track_option
from autotune.errors import machine_error, user_error


@click.command("report")
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write it as one HTML file as well, with plots; it needs no network.",
)
@track_option
@json_option
@guarded
def command(
    run: Path,
    html: Path | None,
    track: tuple[str, ...],
    as_json: bool,
) -> int:
    """Show what RUN probed, a line for each candidate, what is recommended and why."""
    from autotune.cli.views.console import PlainConsole
    from autotune.cli.views.json import report_plain
    from autotune.cli.views.tables import print_report
    from autotune.cli.views.tracker_listener import tracked_script
    from autotune.process.files import write_whole, writing
    from autotune.process.run_folder import RunFolder
    from autotune.report.gather import content_of
    from autotune.report.html import html_report
    from autotune.run.past_run import reopen
    from autotune.script.past_run import reopen_script
    from autotune.trackers.content import tracked_run
    from autotune.trackers.sending import refuse_missing

    refuse_missing(track)
    if html is not None and os.path.lexists(html):
        hint = "name another, or move it"
        raise user_error("the file exists already", where=f"--html {html}", hint=hint)
    if RunFolder(path=run).script.is_file():
        script = reopen_script(run)
        past, content = script.past, script.content()
        summary = tracked_script(script.look, past.facts, past.run)
    else:
        past = reopen(run)
        content, summary = content_of(past), tracked_run(past.job, past.facts, past.run)
    print_notes(past.notes)
    if html is not None:
        with writing(html):
            html.parent.mkdir(parents=True, exist_ok=True)
            write_whole(html, html_report(content))
    if as_json:
        stored, ending = past.stored, past.ending
        recommended = None if stored is None else stored.plain
        plain = report_plain(list(past.records), recommended, past.expectations, past.skipped)
        unprobed = [asdict(value) for value in past.unprobed]
        ended = None if ending is None else ending.plain
        print_json({**plain, "unprobed": unprobed, "ending": ended, "damaged": list(past.notes)})
    else:
        print_report(content, PlainConsole(width=None if PlainConsole().is_terminal else 160))
        if html is not None:
            echo(f"report: {html}")
    _track(past, summary, track)
    return 0


def _track(past: Any, summary: Any, tools: tuple[str, ...]) -> None:
    """Send what trackers have not got yet.

    Raises:
        UserError: the run still goes on, and sends it.
        MachineError: a tool failed.
    """
    from autotune.trackers.sending import Sending

    if not tools:
        return
    with past.run.locked(), closing(Sending(tools, past.run, warn=lambda _: None)) as sending:
        sending.start()
        sending.finish(past, summary)
    if sending.faults:
        hint = f"the logs are in {past.run.tracking}; what was sent already is not sent again"
        raise machine_error("; ".join(sending.faults), where="--track", hint=hint)
