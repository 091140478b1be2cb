"""Every line of the threat model names tests that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "server.md").read_text(encoding="utf-8")


def test_every_threat_names_tests_that_exist() -> None:
    section = PAGE.split("## Threats")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 15
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
        assert named, row
        for file, test in named:
            source = (ROOT / file).read_text(encoding="utf-8")
            assert f"def {test}(" in source, f"{file}::{test}"


def test_every_series_of_the_docs_is_told() -> None:
    source = (ROOT / "autotune" / "server" / "metrics.py").read_text(encoding="utf-8")
    for name in re.findall(r"`(autotune_\w+)", PAGE):
        assert f'"{name.removesuffix("_total")}"' in source, name
