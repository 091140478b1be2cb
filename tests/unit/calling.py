"""Calls of the command line, as a user makes them."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from click.testing import CliRunner, Result

from autotune.cli import main


@contextmanager
def sigterm_kept() -> Iterator[None]:
    """Commands take SIGTERM over; the test process keeps its own."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def call(*arguments: object) -> Result:
    """The result of `autotune ARGUMENTS`; an exception that it lets through is raised."""
    with sigterm_kept():
        result = CliRunner().invoke(main, [str(one) for one in arguments], prog_name="autotune")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def refused(*arguments: object) -> str:
    """What `autotune ARGUMENTS` says on stderr as it refuses a user's file or flags."""
    result = call(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return result.stderr
