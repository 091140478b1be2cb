"""What commands print: the one place where text goes to the terminal as it is.

Names, data and errors come from anywhere; what a terminal would obey in them is shown instead.
`views/console.py` does the same for tables.
"""

import json
from typing import Any

import click

from autotune.errors import CONTROLS, visible


def echo(text: object = "", *, err: bool = False, nl: bool = True) -> None:
    """Print a text."""
    click.echo(visible(str(text)), err=err, nl=nl)


def say(text: object) -> None:
    """Tell on stderr what goes on, unless the command is to be quiet."""
    if not is_quiet():
        echo(text, err=True)


def is_quiet() -> bool:
    """True if the command that runs is to be quiet (`--quiet`)."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.params.get("quiet"))


def print_json(data: Any) -> None:
    """Print one JSON object on stdout."""
    text = json.dumps(data, ensure_ascii=False, sort_keys=True, allow_nan=False)
    click.echo(CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text))
