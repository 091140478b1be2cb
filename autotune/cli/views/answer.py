"""The choices of a plan as a table. Pure."""

from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from autotune.plan.choices import Choice
from autotune.plan.plan import Plan
from autotune.report.plan_answer import FIGURES, SHARDING, WITH, choice_cells, choice_heads

SHARDING_WIDTH, LEAST_WIDTH = 16, 14
"""Columns for what is wrapped, so that no figure is cut at 80."""


def choices_table(plan: Plan, shown: Sequence[Choice]) -> Table:
    """Return a row for each choice, with what the best of it has besides."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    heads = choice_heads(plan, shown)
    for name in heads:
        if name == WITH:
            table.add_column(name, overflow="fold", min_width=LEAST_WIDTH)
            continue
        wide = name == SHARDING
        table.add_column(
            name,
            justify="right" if name in FIGURES else "left",
            no_wrap=not wide,
            max_width=SHARDING_WIDTH if wide else None,
        )
    for choice in shown:
        cells = choice_cells(plan, choice)
        table.add_row(*(escape(cells[name]) for name in heads))
    return table
