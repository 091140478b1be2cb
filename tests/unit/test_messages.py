"""All messages that the code can raise, as `scripts/print_messages.py` prints them."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BENT = re.compile(r"(?<!there )\b(?:is|are) no\b|\bhas not\b(?! been)|\bany more\b")


def printed(*arguments: str) -> list[str]:
    command = [sys.executable, str(ROOT / "scripts" / "print_messages.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def test_fields_of_f_strings_stand_in_braces_and_docstrings_are_left_out() -> None:
    space = ROOT / "autotune" / "space"
    lines = printed(str(space))
    assert any(
        re.search(r"batch_checks.py:\d+: what: \{sequences\} completions cannot be split", line)
        for line in lines
    )
    assert len(printed("--all", str(space))) > len(lines) > 50
    assert not any("The search space" in line for line in lines)


def test_no_message_bends_its_negation() -> None:
    lines = printed("--all")
    assert len(lines) > 500
    assert not [line for line in lines if BENT.search(line)]
