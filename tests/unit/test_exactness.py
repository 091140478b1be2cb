"""That the sweeps of exactness were run for the code as it is."""

from tests.exactness import RECORD, code, fingerprint


def test_the_sweeps_were_run_since_estimates_or_trainers_changed() -> None:
    recorded = RECORD.read_text(encoding="ascii").strip()
    assert recorded == fingerprint(), "run scripts/test --exactness: it records the hash"


def test_words_about_the_code_are_no_change_and_code_is() -> None:
    bare = "def f(x):\n    return x + 1\n"
    told = '"""A module."""\n\n\ndef f(x):  # adds\n    """One more."""\n    \n    return x + 1\n'
    assert code(bare) == code(told)
    assert code(bare) != code(bare.replace("1", "2"))
