"""The names that users import."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import autotune


@pytest.mark.parametrize("name", autotune.__all__)
def test_every_public_name_resolves_and_stays_what_it_is(name: str) -> None:
    first = getattr(autotune, name)
    assert getattr(autotune, name) is first


def test_a_type_checker_finds_each_name_where_it_is_found_at_run_time() -> None:
    tree = ast.parse(Path(autotune.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    assert ast.unparse(block.test) == "TYPE_CHECKING"
    imported = {
        name.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    assert imported == autotune._HOMES


def test_functions_are_callable_whatever_was_imported_before() -> None:
    code = (
        "import importlib, autotune, autotune.cli.plan, autotune.run.tuning, autotune.plan.plan\n"
        "import autotune.probe.measure\n"
        "for package in (autotune, importlib.reload(autotune)):\n"
        "    assert all(map(callable, (package.tune, package.plan, package.probe)))\n"
        "    assert package.plan.__module__ == 'autotune.api.planning'\n"
        "from autotune import load_job, plan, probe, tune\n"
        "assert all(map(callable, (load_job, plan, probe, tune)))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute `nonsense`"):
        autotune.nonsense  # noqa: B018
