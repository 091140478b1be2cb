"""The five problems as their authors write them, nothing pinned: the answers are the README's."""

import os
import re
import shlex
from typing import NamedTuple

import pytest

from tests.cpu.conftest import Command
from tests.cpu.stand_ins import EXAMPLES

PAGE = (EXAMPLES / "five-problems" / "README.md").read_text(encoding="utf-8")
LONG = ("ppo-7b", "lora-7b-8-gpus", "sft-0.5b.yaml --device cpu")
"""Minutes on two cores."""


class Quote(NamedTuple):
    """What the page quotes of a plan."""

    command: str
    exit_code: int
    lines: tuple[str, ...]


def quotes() -> list[Quote]:
    found = re.findall(
        r"^`autotune (plan .+?)`(?: \(exit code (\d)\))?:?\n\n((?:>.*\n)+)", PAGE, re.M
    )
    return [
        Quote(command, int(code or 0), tuple(quote.replace("> ", "", 1).split("\n> ")))
        for command, code, quote in found
    ]


def test_the_page_quotes_a_plan_of_each_problem() -> None:
    jobs = {path.name for path in (EXAMPLES / "five-problems").glob("*.yaml")}
    assert {quote.command.split()[1].rpartition("/")[2] for quote in quotes()} == jobs


@pytest.mark.parametrize("quote", quotes(), ids=lambda quote: quote.command)
def test_a_plan_prints_what_the_page_quotes(autotune: Command, quote: Quote) -> None:
    if any(name in quote.command for name in LONG) and not os.environ.get("AUTOTUNE_LONG_TESTS"):
        pytest.skip("minutes: AUTOTUNE_LONG_TESTS=1")
    _, job, *flags = shlex.split(quote.command)
    printed = autotune("plan", str(EXAMPLES.parent / job), *flags, expect=quote.exit_code)
    assert " ".join(" ".join(quote.lines).split()) in " ".join(printed.split())
