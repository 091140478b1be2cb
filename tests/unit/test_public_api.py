"""The names that users import."""

import subprocess
import sys

import pytest

import autotune


@pytest.mark.parametrize("name", autotune.__all__)
def test_every_public_name_resolves_and_stays_what_it_is(name: str) -> None:
    first = getattr(autotune, name)
    assert getattr(autotune, name) is first


def test_the_tune_function_is_callable_whatever_was_imported_before() -> None:
    code = (
        "import autotune, autotune.cli.run, autotune.run.tuning\n"
        "assert callable(autotune.tune) and callable(autotune.load_job)\n"
        "assert callable(autotune.tune)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute `nonsense`"):
        autotune.nonsense  # noqa: B018
