"""A terminal that takes nothing for a while holds up nobody, and gets all in the end."""

import os
import tty

import pytest

from autotune.cli.views.live.writer import Writer

LINES = [f"{number} ü\n" for number in range(50_000)]
"""More than a terminal keeps for whoever reads it late."""


@pytest.mark.parametrize("blocking", [True, False])
def test_who_writes_to_a_terminal_that_hangs_goes_on(blocking: bool) -> None:
    """A program that ran there before, such as node, may have left it non-blocking."""
    ours, theirs = os.openpty()
    tty.setraw(theirs)
    os.set_blocking(theirs, blocking)
    with os.fdopen(theirs, "w", encoding="utf-8") as terminal, os.fdopen(ours, "rb", 0) as reader:
        writer = Writer(terminal)
        for line in LINES:
            writer.write(line)
        assert writer.isatty() and writer.is_behind
        expected, seen = "".join(LINES).encode(), b""
        while len(seen) < len(expected):
            seen += reader.read(65536)
        assert seen == expected
        writer.close()
        assert not writer.is_behind


def test_a_terminal_that_is_gone_is_written_to_in_vain() -> None:
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "w", encoding="utf-8") as terminal:
        os.close(ours)
        writer = Writer(terminal)
        writer.write("lost")
        writer.close()
        assert not writer.is_behind
