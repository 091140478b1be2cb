"""What libraries look up while they are imported, with the same answers and less work."""

import csv
import functools
import importlib.metadata
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable

_NAME = re.compile(r"^Name: *(.+?) *$", re.MULTILINE)


@functools.cache
def packages_distributions() -> dict[str, list[str]]:
    """Return the distributions that bring each top-level package.

    As importlib.metadata's of Python 3.11, which parses the metadata of a distribution for each of
    its packages, and makes a path of each installed file. From 3.12 on it counts other files, too.
    """
    found: dict[str, list[str]] = defaultdict(list)
    for distribution in importlib.metadata.distributions():
        declared = (distribution.read_text("top_level.txt") or "").split()
        name = _NAME.search(distribution.read_text("METADATA") or "")
        for package in declared or _installed_packages(distribution):
            found[package].append(name[1] if name else distribution.name)
    return dict(found)


def _installed_packages(distribution: importlib.metadata.Distribution) -> Iterable[str]:
    """Return the top-level packages and modules among the files of a distribution."""
    record = distribution.read_text("RECORD")
    if record is None:
        files = [str(file) for file in distribution.files or ()]
    else:
        files = [row[0] for row in csv.reader(record.splitlines()) if row]
    sources = (file for file in files if file.endswith(".py"))
    return {file.partition("/")[0].removesuffix(".py") for file in sources}


def exported_names(read: Callable[[str], list[str]], content: str) -> list[str]:
    """Return what a module's `__all__` holds, by transformers' own `read`, which looks at each line
    before the last one that begins with it.

    Args:
        content: the module's source.
    """
    start = content.rfind("\n__all__") + 1
    return read(content[start:]) if start or content.startswith("__all__") else []


def source_of_caller(stacklevel: int) -> str:
    """Return file and line of a caller, `stacklevel` frames up, as torch notes it for each operator
    that is registered: it reads the whole file for that."""
    frame = sys._getframe(stacklevel)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
