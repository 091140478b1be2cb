"""The five problems as their authors write them, nothing pinned: the answers are the README's.

Pages for users quote the same plans, so their screens are held here, where the traces are."""

import json
import re
import shlex
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from tests.cpu.conftest import Command
from tests.cpu.screens import Screen, screens
from tests.cpu.stand_ins import EXAMPLES
from tests.guards import some_of

PAGE = (EXAMPLES / "five-problems" / "README.md").read_text(encoding="utf-8")

USERS = [EXAMPLES.parent / "docs" / "first_answer.md", *EXAMPLES.parent.glob("docs/tasks/*.md")]
OFTEN = "plan qwen2.5-7b --device rtx4090"
"""The screen that is shown each time; the others where the code of plans has changed."""


class Quote(NamedTuple):
    """What the page quotes of a plan."""

    command: str
    exit_code: int
    text: str


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


@pytest.mark.parametrize("command", some_of([q.command for q in quotes()], (), "documents"))
def test_a_plan_prints_what_the_page_quotes(autotune: Command, command: str) -> None:
    (quote,) = (one for one in quotes() if one.command == command)
    _, job, *flags = shlex.split(quote.command)
    printed = autotune("plan", str(EXAMPLES.parent / job), *flags, expect=quote.exit_code)
    assert quote.text in " ".join(printed.split())


@pytest.mark.nightly("documents")
def test_a_host_without_a_gpu_is_answered_for_its_cores(autotune: Command) -> None:
    job = EXAMPLES / "five-problems" / "sft-0.5b.yaml"
    plan = json.loads(autotune("plan", str(job), "--device", "cpu", "--json"))
    assert plan["answer"]["safe"] and plan["answer"]["epoch_s"] > 3600


@pytest.mark.parametrize(
    ("page", "screen"),
    [
        pytest.param(
            page,
            screen,
            id=f"{page.stem}: {screen.command}",
            marks=() if screen.command.endswith(OFTEN) else pytest.mark.nightly("documents"),
        )
        for page in USERS
        for screen in screens(page)
    ],
)
def test_a_page_for_users_shows_what_a_command_prints(
    autotune: Command, tmp_path: Path, page: Path, screen: Screen
) -> None:
    (tmp_path / "examples").symlink_to(EXAMPLES)
    shutil.copy(EXAMPLES / "five-problems" / "sft-0.5b.yaml", tmp_path / "job.yaml")
    for before in screens(page):
        if before != screen and "import" in before.words:
            (tmp_path / "job.yaml").unlink()
            autotune(*before.words)
    if "import" in screen.words:
        (tmp_path / "job.yaml").unlink()
    screen.check(autotune)


def test_the_job_of_the_first_answer_is_the_one_that_is_planned() -> None:
    (text,) = re.findall(r"^```yaml\n(.*?)^```", USERS[0].read_text(encoding="utf-8"), re.M | re.S)
    planned = (EXAMPLES / "five-problems" / "sft-0.5b.yaml").read_text(encoding="utf-8")
    assert yaml.safe_load(text) == yaml.safe_load(planned)


def test_the_run_of_the_first_answer_is_recorded() -> None:
    page, recorded = USERS[0].read_text("utf-8"), EXAMPLES.parent / "benchmarks" / "recorded"
    log = (recorded / "gpu-smoke-h100-2026-11-26" / "smoke_log.txt").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", page, re.M | re.S)
    (screen,) = [text for language, text in blocks if not language]
    lines = [line for line in screen.splitlines() if line != "..."]
    assert lines and not set(lines) - set(log.splitlines())
