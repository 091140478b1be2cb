"""The five problems as their authors write them, nothing pinned: the answers are the README's."""

import json
import os
import re
import shlex
from typing import NamedTuple

import pytest

from tests.cpu.conftest import Command
from tests.cpu.stand_ins import EXAMPLES

PAGE = (EXAMPLES / "five-problems" / "README.md").read_text(encoding="utf-8")
LONG_TEST = pytest.mark.skipif(
    not os.environ.get("AUTOTUNE_LONG_TESTS"), reason="minutes: AUTOTUNE_LONG_TESTS=1"
)


class Quote(NamedTuple):
    """What the page quotes of a plan."""

    command: str
    exit_code: int
    text: str

    @property
    def is_long(self) -> bool:
        """Whether it takes minutes on two cores."""
        return any(job in self.command for job in ("ppo-", "lora-7b-8-gpus"))


def quotes() -> list[Quote]:
    found = re.findall(
        r"^`autotune (plan .+?)`(?: \(exit code (\d)\))?:?\n\n((?:>.*\n)+)", PAGE, re.M
    )
    return [
        Quote(command, int(code or 0), " ".join(re.sub("^>", "", quote, flags=re.M).split()))
        for command, code, quote in found
    ]


def test_the_page_quotes_a_plan_of_each_problem() -> None:
    jobs = {path.name for path in (EXAMPLES / "five-problems").glob("*.yaml")}
    assert {quote.command.split()[1].rpartition("/")[2] for quote in quotes()} == jobs


@pytest.mark.parametrize(
    "quote",
    [
        pytest.param(quote, id=quote.command, marks=LONG_TEST if quote.is_long else ())
        for quote in quotes()
    ],
)
def test_a_plan_prints_what_the_page_quotes(autotune: Command, quote: Quote) -> None:
    _, job, *flags = shlex.split(quote.command)
    printed = autotune("plan", str(EXAMPLES.parent / job), *flags, expect=quote.exit_code)
    assert quote.text in " ".join(printed.split())


@LONG_TEST
def test_a_host_without_a_gpu_is_answered_for_its_cores(autotune: Command) -> None:
    job = EXAMPLES / "five-problems" / "sft-0.5b.yaml"
    plan = json.loads(autotune("plan", str(job), "--device", "cpu", "--json"))
    assert plan["answer"]["safe"] and plan["answer"]["epoch_s"] > 3600
