"""That the tests exist which are named as evidence of the README's claims."""

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def test_every_claim_has_its_test() -> None:
    text = (TESTS / "README.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("|")][2:]
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
