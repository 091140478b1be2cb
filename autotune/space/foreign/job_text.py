"""The job file that is made of another tool's configuration, commented. Pure."""

import itertools
import textwrap
from collections.abc import Iterable, Iterator

from autotune.errors import in_one_line
from autotune.job.yaml_file import to_yaml
from autotune.space.foreign.fields import Imported

_WIDTH = 94


def job_text(found: Imported, sources: str) -> str:
    """Return the job file, with what is not in it as comments.

    Args:
        sources: the files, or the command, that it was made of.
    """
    lines = [
        f"Made by `autotune import` of {in_one_line(sources)}.",
        "What this file names is relative to it; docs/job.md has all fields.",
        *comments(found),
    ]
    return "".join(f"# {line}\n" for line in lines) + to_yaml(found.job)


def comments(found: Imported, assumed: Iterable[str] = ()) -> Iterator[str]:
    """Yield, line by line, what was not carried and what was assumed (`assumed` besides)."""
    lost = [
        f"{detail}: {', '.join(fate.field for fate in fates)}"
        for detail, fates in itertools.groupby(found.lost, lambda fate: fate.detail)
    ]
    lists = {"Not carried, by what it may change:": lost, "Assumed:": [*found.assumed, *assumed]}
    for title, entries in lists.items():
        if entries:
            yield title
        for entry in entries:
            yield from textwrap.wrap(
                in_one_line(entry), _WIDTH, initial_indent="- ", subsequent_indent="  "
            )
