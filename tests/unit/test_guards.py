"""The tests that are left out of each change were run for the code as it is."""

import re

import pytest

from tests.guards import GUARDS, RECORDS, ROOT, code, fingerprint, owed, recorded


@pytest.mark.parametrize("guard", GUARDS)
def test_the_tests_of_a_guard_were_run_since_its_code_changed(guard: str) -> None:
    """Or a line of `passed/owed.txt` says openly that they were not, and why."""
    has_passed = recorded(guard) == fingerprint(guard)
    assert has_passed != (guard in owed()), (
        f"run scripts/test --guard {guard}: it runs the tests that this code has made due, and "
        "records it"
    )


def test_every_guard_has_tests_and_every_mark_a_guard() -> None:
    marks: set[tuple[str, str]] = set()
    for file in (ROOT / "tests").rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        marks |= set(re.findall(r"nightly\(\"(\w+)\"\)|some_of\([^()]*\"(\w+)\"\)", text))
    assert {first or second for first, second in marks} == set(GUARDS)
    assert {file.stem for file in RECORDS.glob("*.sha")} <= set(GUARDS)
    assert owed().keys() <= GUARDS.keys() and all(owed().values())


def test_words_about_the_code_are_no_change_and_code_is() -> None:
    bare = "def f(x):\n    return x + 1\n"
    told = '"""A module."""\n\n\ndef f(x):  # adds\n    """One more."""\n    \n    return x + 1\n'
    assert code(bare) == code(told)
    assert code(bare) != code(bare.replace("1", "2"))
