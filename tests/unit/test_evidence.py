"""That the tests exist which are named as evidence of the README's claims."""

import re
from pathlib import Path

from tests.guards import GUARDS

TESTS = Path(__file__).resolve().parents[1]
README = (TESTS / "README.md").read_text(encoding="utf-8")


def test_every_claim_has_its_test() -> None:
    claims = README.partition("\n## ")[0]
    rows = [line for line in claims.splitlines() if line.startswith("|")][2:]
    missing = []
    for row in rows:
        for part in row.split("|")[2].split(";"):
            file, *names = re.findall(r"`([\w/.]+)`", part.replace("`launch.sh`", "")) or [None]
            if file is None:
                continue
            source = TESTS / file
            found = source.read_text(encoding="utf-8") if source.is_file() else ""
            missing += [f"{file}: {n}" for n in names if f"def {n}(" not in found]
            missing += [] if found else [file]
    assert len(rows) > 10 and not missing


def test_every_guard_is_told_with_what_it_shows() -> None:
    assert re.findall(r"^\| `(\w+)` \|", README.partition("\n## ")[2], re.MULTILINE) == list(GUARDS)
