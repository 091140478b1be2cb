"""What libraries look up while they are imported is what they would find by themselves."""

import importlib.metadata
import sys
from pathlib import Path

import pytest
from torch._library.utils import get_source
from transformers.utils import import_utils

from autotune.process import import_lookups

SOURCES = Path(import_utils.__file__).parents[1] / "models"


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="Python's own is used there")
def test_each_package_is_brought_by_the_same_distributions():
    found, by_python = (
        {package: sorted(names) for package, names in read().items()}
        for read in (
            import_lookups.packages_distributions,
            importlib.metadata.packages_distributions,
        )
    )
    assert importlib.metadata.packages_distributions.__module__ == "importlib.metadata"
    assert found == by_python
    assert "autotune" in found


def test_the_same_names_are_exported_by_each_module_of_transformers():
    contents = [path.read_text(encoding="utf-8") for path in SOURCES.rglob("*.py")]
    read = import_utils.fetch__all__
    assert len(contents) > 1000 and read.__module__ == import_utils.__name__
    for content in (*contents, "", "x = 1\n", "__all__ = ['a']\nb = 2\n__all__ = ['c']"):
        assert import_lookups.exported_names(read, content) == read(content)


def test_an_operator_is_noted_with_the_same_place():
    assert get_source is not import_lookups.source_of_caller
    assert import_lookups.source_of_caller(1) == get_source(1)
