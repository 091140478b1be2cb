"""The parts of scripts/nightly: all benchmarks are among them, and one that fails is named."""

import json
from pathlib import Path

import pytest

from scripts import nightly_parts

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ("gpu.sh", "nightly_parts.py")


def test_every_benchmark_that_can_be_started_is_a_part() -> None:
    started = "".join((ROOT / "scripts" / name).read_text(encoding="utf-8") for name in SCRIPTS)
    left_out = []
    for file in (ROOT / "benchmarks").rglob("*.py"):
        if '__name__ == "__main__"' not in file.read_text(encoding="utf-8"):
            continue
        path = file.relative_to(ROOT)
        module = ".".join(path.with_suffix("").parts)
        beside = [other.read_text("utf-8") for other in file.parent.glob("*.py") if other != file]
        names = (f'"{file.name}"', f'"{module}"')
        if (
            str(path) not in started
            and module not in started
            and not any(name in text for text in beside for name in names)
        ):
            left_out.append(str(path))
    assert not left_out


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    commands = {
        "tests/good": "echo '==== 2 passed, 1 skipped in 3.21s (0:00:03) ===='",
        "tests/bad": "python -c 'import sys; sys.exit(7)'",
        "benchmarks/row": "cp " + str(tmp_path / "row.jsonl") + " {out}/rows.jsonl",
        "benchmarks/nothing": "true {out}",
        "last": "true",
    }
    (tmp_path / "row.jsonl").write_text(json.dumps({"name": "a", "failure": "it\nbroke"}) + "\n")
    monkeypatch.setattr(nightly_parts, "PARTS", commands)
    monkeypatch.setattr(nightly_parts, "LOGS", tmp_path)
    return commands


def test_what_failed_is_named_and_the_rest_is_run(
    parts: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.argv", ["nightly"])
    assert nightly_parts.main() == 1
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert [line.split(" min ")[1] for line in lines[2:7]] == [
        "tests/good passed 2 passed, 1 skipped in 3.21s (0:00:03)",
        "tests/bad FAILED: exit code 7",
        "benchmarks/row FAILED: broke",
        "benchmarks/nothing FAILED: it wrote nothing",
        "last passed",
    ]
    assert lines[-1].startswith(
        "failed: tests/bad, benchmarks/row, benchmarks/nothing; their logs are in "
    )


def test_parts_are_named_by_their_beginning(
    parts: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["nightly", "--list", "last", "tests"])
    assert nightly_parts.main() == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == ["tests/good", "tests/bad", "last"]
