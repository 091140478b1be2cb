"""Screens of the documentation: a command and what it prints."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.cpu.conftest import Command

_BLOCK = re.compile(r"^```console\n\$ (.+?)^```", re.MULTILINE | re.DOTALL)


class Screen(NamedTuple):
    """A command of a page and the parts of what it prints that stand there, `...` between them."""

    command: str
    parts: tuple[str, ...]

    @property
    def words(self) -> list[str]:
        """The arguments of `autotune`."""
        return shlex.split(self.command)[1:]

    def check(self, autotune: Command) -> None:
        """Run it: each part stands in what it prints or says, in this order."""
        out, err = autotune.both(*self.words, expect=None)
        text = "\n".join(line.rstrip() for line in f"{err}\n{out}".splitlines())
        begin = 0
        for part in self.parts:
            assert part in text[begin:], f"{self.command} prints\n{text}\nand not\n{part}"
            begin = text.index(part, begin) + len(part)


def screens(page: Path) -> Iterator[Screen]:
    for block in _BLOCK.findall(page.read_text(encoding="utf-8")):
        command, _, printed = block.replace("\\\n", " ").partition("\n")
        parts = [part.strip("\n") for part in re.split(r"^\.\.\.$", printed, flags=re.MULTILINE)]
        yield Screen(command, tuple(part for part in parts if part))
