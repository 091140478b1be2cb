"""What is said while a plan or a run works."""

import sys

from autotune.errors import visible


def say(text: str) -> None:
    """Print a line on stderr, which a notebook shows below the cell."""
    print(visible(text), file=sys.stderr, flush=True)
