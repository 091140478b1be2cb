"""What `autotune plan` does for several devices: a row each, and which to take."""

import re
import textwrap
from typing import Any

from autotune.cli.command import echo, print_json
from autotune.cli.planned_job import PlannedJob, scratch_folder, shown_progress
from autotune.errors import EXIT_DONE, EXIT_NOTHING_FITS, user_error

_WIDTH = 80


def compare(
    planned: PlannedJob,
    devices: str,
    prices: str | None,
    deadline: str | None,
    at_most: str | None,
    *,
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
    limits = report.Limits(most_s=_time(deadline), most_money=_money(at_most, priced))
    open_tuning = planned.leaves_tuning_open
    answers: dict[str, dict[str, Any]] = {}
    some_keep_limits = False
    for tuning in ("lora", "full") if open_tuning else (None,):
        job, definition = planned.loaded_for_machines(tuning)
        with scratch_folder() as folder, shown_progress() as progress:
            rows = report.machine_rows(
                job, definition, folder, machines, assume=planned.assume, progress=progress
            )
        made = report.offers(rows, priced, limits)
        some_keep_limits |= any(offer.within for offer in made)
        lines = list(report.machine_lines(rows, made, priced, limits))
        lines += report.closing_lines(job, made)
        answers[job.tuning] = report.machines_plain(rows, made, lines)
        if not as_json:
            _print(job.tuning if open_tuning else None, lines, made)
            if made or not open_tuning:
                _print_table(list(report.machine_cells(rows, made, priced)))
    if as_json:
        first, *others = answers.values()
        print_json(
            {**first, "assumed": list(planned.assumed), "other_tuning": next(iter(others), None)}
        )
    else:
        for assumed in planned.assumed:
            echo(textwrap.fill(f"Assumed: {assumed}.", _WIDTH, break_on_hyphens=False))
    return EXIT_DONE if some_keep_limits else EXIT_NOTHING_FITS


def _print(tuning: str | None, lines: list[str], made: Any) -> None:
    from autotune.report.words import tuning_text

    head = "" if tuning is None else f"{tuning_text(tuning)}: "
    for number, line in enumerate(lines):
        echo(textwrap.fill(f"{head if number == 0 else ''}{line}", _WIDTH, break_on_hyphens=False))
    if made:
        echo("")


def _print_table(cells: list[list[str]]) -> None:
    """Print a table, and what its signs mean; its last column is cut at the width of the page."""
    widths = [max(len(row[n]) for row in cells) for n in range(len(cells[0]) - 1)]
    for row in cells:
        figures = [
            text.ljust(width) if n < 2 else text.rjust(width)
            for n, (text, width) in enumerate(zip(row, widths, strict=False))
        ]
        line = "  ".join([*figures, row[-1]]).rstrip()
        echo(line if len(line) <= _WIDTH else f"{line[: _WIDTH - 1]}…")
    signs = {
        "ckpt: gradient checkpointing": any("ckpt" in row[-1] for row in cells),
        "*: none is faster and cheaper": any(row[0] for row in cells),
        ">: at least": any(text.startswith(">") for row in cells for text in row[:-1]),
    }
    if any(signs.values()):
        echo("; ".join(text for text, is_there in signs.items() if is_there))
    echo("")


def _time(text: str | None) -> float | None:
    from autotune.units import parse_seconds

    if text is None:
        return None
    try:
        return parse_seconds(text)
    except ValueError as error:
        raise user_error(str(error), where="--deadline", hint="such as `20h` or `90m`") from None


def _money(text: str | None, prices: Any) -> float | None:
    if text is None:
        return None
    number = re.fullmatch(r"[$€£]?\s*([0-9]+(?:\.[0-9]+)?)\s*[^\s\d.,]{0,3}", text.strip())
    if number is None or float(number[1]) <= 0:
        raise user_error(
            f"`{text}` is not an amount above 0", where="--at-most", hint="such as `50$`"
        )
    if prices is None:
        raise user_error(
            "no prices are known",
            where="--at-most",
            hint="add `--prices FILE` (a line a kind: `h100: 2.50`), or `--prices listed`",
        )
    signs = re.sub(r"[\d.\s]", "", text)
    if signs and signs != prices.currency:
        raise user_error(
            f"`{text}` is in {signs}, but the prices are in {prices.currency}",
            where="--at-most",
            hint=f"write `{number[1]}{prices.currency}`, or `currency: {signs}` in the price file",
        )
    return float(number[1])
