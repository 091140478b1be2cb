"""`autotune report`."""

from dataclasses import asdict
from pathlib import Path

import click

from autotune.cli.echo import echo, print_json
from autotune.cli.guarded import guarded
from autotune.cli.job_options import (
    json_option,
    print_notes,
    storage_of,
    storage_option,
)


@click.command("report")
@click.argument("run", type=click.Path(path_type=Path))
@storage_option("Optuna storage URL of the run, where it has one of its own.")
@json_option
@guarded
def command(run: Path, storage: str | None, as_json: bool) -> int:
    """Show every probe of RUN, what is recommended and why."""
    from autotune.cli.views.console import PlainConsole
    from autotune.cli.views.json import report_plain
    from autotune.cli.views.results import (
        cost_lines,
        ending_lines,
        repeat_lines,
        skipped_lines,
        verification_line,
    )
    from autotune.cli.views.tables import records_table
    from autotune.run.comparison import compared
    from autotune.run.past_run import reopen

    past = reopen(run, storage_of(storage))
    stored, ending = past.stored, past.ending
    print_notes(past.notes)
    if as_json:
        recommended = None if stored is None else stored.plain
        plain = report_plain(list(past.records), recommended, past.expectations, past.skipped)
        unprobed = [asdict(value) for value in past.unprobed]
        ended = None if ending is None else ending.plain
        print_json({**plain, "unprobed": unprobed, "ending": ended, "damaged": list(past.notes)})
        return 0
    free = [knob.name for knob in past.space.free_knobs]
    console = PlainConsole(width=None if PlainConsole().is_terminal else 160)
    expectations = past.expectations
    estimates = {} if expectations is None else expectations.estimates
    console.print(records_table(past.records, free, estimates))
    for line in [] if expectations is None else compared(expectations, past.records).lines():
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    for line in [
        *(value.sentence() for value in past.unprobed),
        *skipped_lines(past.skipped),
        *repeat_lines(past.records),
        *cost_lines(past.records),
        *ending_lines(ending),
        *(f"note: {note}" for note in past.space.notes),
    ]:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    if stored is None:
        console.print("\nno recommendation yet", highlight=False)
        return 0
    console.print(f"\nrecommended: probe {stored.probe}", highlight=False, markup=False)
    for reason in stored.reasons:
        console.print(f"- {reason}", highlight=False, markup=False)
    text = verification_line(stored.verification)
    console.print(text, highlight=False, markup=False, soft_wrap=True)
    echo(f"bundle: {past.run.bundle}")
    return 0
