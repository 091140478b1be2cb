"""What a test needs and this machine may not have."""

import os
from typing import NoReturn

import pytest


def absent(what: str) -> NoReturn:
    """Skip a test, or fail it where nothing is to be skipped (.ci/run)."""
    if os.environ.get("AUTOTUNE_TESTS_SKIP_NOTHING"):
        pytest.fail(what)
    pytest.skip(what)
