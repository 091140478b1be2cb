"""What benchmarks, scripts and tests import is there.

Many run seldom, and what is moved or renamed would break them unseen. Nothing is imported for it:
their source is read.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OURS = ("autotune", "benchmarks", "scripts", "tests")
FILES = sorted(file for folder in OURS[1:] for file in (ROOT / folder).rglob("*.py"))
TEXTS = [*(ROOT / "scripts").iterdir(), *(ROOT / "benchmarks").rglob("*.md"), *FILES]


def source(module: str, beside: Path) -> Path | None:
    """Return the file or folder of a module of ours, None where there is none."""
    base = ROOT if module.split(".")[0] in OURS else beside
    path = base.joinpath(*module.split("."))
    return next((one for one in (path.with_suffix(".py"), path) if one.exists()), None)


@cache
def names(file: Path) -> frozenset[str]:
    """Return what a module defines at its top, also where that depends on something."""
    if file.is_dir():
        inside = {one.stem for one in file.iterdir()}
        start = file / "__init__.py"
        return frozenset(inside) | (names(start) if start.exists() else frozenset())
    found: set[str] = set()
    waiting: list[ast.AST] = list(ast.parse(file.read_text(encoding="utf-8")).body)
    for node in waiting:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        else:
            waiting += ast.iter_child_nodes(node)
    return frozenset(found)


def lost(module: str, name: str, beside: Path) -> bool:
    """True if a module of ours is not there, or has no such name."""
    file = source(module, beside)
    if file is None:
        return module.split(".")[0] in OURS
    return bool(name) and not {name, "__getattr__"} & names(file)


def imported(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Yield (line, module, name) of every import, and of every use of an imported module."""
    modules: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, "") for alias in node.names)
            modules |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield node.lineno, node.module, alias.name
                modules[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = modules.get(node.value.id, "")
            if module and source(module, ROOT) is not None:
                yield node.lineno, module, node.attr


def test_what_is_imported_is_there() -> None:
    missing = [
        f"{file.relative_to(ROOT)}:{line}: {module} {name}"
        for file in FILES
        for line, module, name in imported(ast.parse(file.read_text(encoding="utf-8")))
        if lost(module, name, file.parent)
    ]
    assert len(FILES) > 80 and not missing


def test_modules_that_are_run_by_name_are_there() -> None:
    missing = [
        f"{file.relative_to(ROOT)}: {module}"
        for file in TEXTS
        if file.is_file()
        for module in re.findall(rf"-m ((?:{'|'.join(OURS)})[.\w]*\w)", file.read_text("utf-8"))
        if lost(module, "", ROOT)
    ]
    assert not missing


def test_a_name_that_is_lost_is_found() -> None:
    text = "from autotune.units import nothing\nfrom autotune import units\n"
    text += "units.never, units.parse_bytes\n"
    found = [name for _, module, name in imported(ast.parse(text)) if lost(module, name, ROOT)]
    assert found == ["nothing", "never"]
