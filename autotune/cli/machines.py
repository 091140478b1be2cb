"""What `autotune plan` does for several devices: a row each, and which to take."""

import dataclasses
import textwrap
from pathlib import Path
from typing import Any

from autotune.cli.command import echo, print_json
from autotune.cli.job_options import write_result
from autotune.cli.planned_job import PlannedJob, scratch_folder, shown_progress
from autotune.errors import EXIT_DONE, EXIT_NOTHING_FITS, UserError

_WIDTH = 80


def compare(
    planned: PlannedJob,
    devices: str,
    prices: str | None,
    deadline: str | None,
    at_most: str | None,
    *,
    record: Path | None,
    as_json: bool,
) -> int:
    """Print the best configuration on each machine, with time and money; return the exit code.

    Raises:
        UserError: a device, a price file or a limit cannot be.
    """
    from autotune.facts.machines import machines_of
    from autotune.facts.prices import prices_of
    from autotune.report import machines as report

    machines = machines_of(devices)
    priced = None if prices is None else prices_of(prices)
    try:
        limits = report.limits_of(deadline, at_most, priced)
    except UserError as error:
        raise UserError(*map(_as_option, error.problems)) from None
    open_tuning = planned.leaves_tuning_open
    answers: dict[str, dict[str, Any]] = {}
    some_keep_limits = False
    with shown_progress(record) as progress:
        for tuning in ("lora", "full") if open_tuning else (None,):
            job, definition = planned.loaded_for_machines(tuning)
            with scratch_folder() as folder:
                rows = report.machine_rows(
                    job, definition, folder, machines, assume=planned.assume, progress=progress
                )
            made = report.offers(rows, priced, limits)
            some_keep_limits |= any(offer.within for offer in made)
            lines = list(report.machine_lines(rows, made, priced, limits))
            lines += report.closing_lines(job, made)
            answers[job.tuning] = report.machines_plain(rows, made, lines, priced)
    assumed = list(planned.assumed)
    first, *others = answers.values()
    plain = {**first, "assumed": assumed, "other_tuning": next(iter(others), None)}
    if record is not None:
        write_result(record, plain)
    if as_json:
        print_json(plain)
    else:
        for tuning, answer in answers.items():
            _print(tuning if open_tuning else None, answer)
        for text in assumed:
            echo(textwrap.fill(f"Assumed: {text}.", _WIDTH, break_on_hyphens=False))
    return EXIT_DONE if some_keep_limits else EXIT_NOTHING_FITS


def _as_option(problem: Any) -> Any:
    return dataclasses.replace(problem, where=f"--{problem.where.replace('_', '-')}")


def _print(tuning: str | None, answer: dict[str, Any]) -> None:
    """Print a plan; of a tuning that is one of two without its table where nothing is safe."""
    from autotune.report.words import tuning_text

    is_safe = any(one["safe"] and one["job_s"] is not None for one in answer["machines"])
    head = "" if tuning is None else f"{tuning_text(tuning)}: "
    for number, line in enumerate(answer["lines"]):
        echo(textwrap.fill(f"{head if number == 0 else ''}{line}", _WIDTH, break_on_hyphens=False))
    if is_safe:
        echo("")
    if is_safe or tuning is None:
        print_table(answer["table"])


def print_table(table: dict[str, Any]) -> None:
    """Print a table, and what its signs mean; its last column is cut at the width of the page."""
    cells = [table["heads"], *table["rows"]]
    widths = [max(len(row[n]) for row in cells) for n in range(len(cells[0]) - 1)]
    for row in cells:
        figures = [
            text.ljust(width) if n < 2 else text.rjust(width)
            for n, (text, width) in enumerate(zip(row, widths, strict=False))
        ]
        line = "  ".join([*figures, row[-1]]).rstrip()
        echo(line if len(line) <= _WIDTH else f"{line[: _WIDTH - 1]}…")
    if table["notes"]:
        echo("; ".join(table["notes"]))
    echo("")
