"""Print every message that the code can raise or show, so that all can be read in one go.

    python scripts/print_messages.py [--all] [FOLDER ...]

A line each: the file and line, what it is (`what`, `hint`, `reason`, the class that is raised), and
the text, with the fields of f-strings as {name}. `--all` adds every other text of four words or
more that is not a docstring: reasons that functions return, lines of reports, prompts.
"""

import argparse
import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
RAISERS = {"user_error", "machine_error", "Problem", "report", "problem", "_problem"}
"""Functions whose texts without a name are `what`."""
NAMES = {"what", "hint", "reason", "detail", "message", "note", "why", "help"}
"""Names of arguments, and of variables, that hold messages."""


def main() -> int:
    """Print them in the order of files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--all", action="store_true", help="other texts of four words or more too")
    parser.add_argument("folders", nargs="*", type=Path, default=[ROOT / "autotune"])
    arguments = parser.parse_args()
    for folder in arguments.folders:
        for file in sorted(folder.resolve().rglob("*.py")):
            tree = ast.parse(file.read_text(encoding="utf-8"))
            for line, kind, text in messages(tree, other=arguments.all):
                print(f"{file.relative_to(ROOT)}:{line}: {kind}: {text}")
    return 0


def messages(tree: ast.AST, *, other: bool) -> Iterator[tuple[int, str, str]]:
    """The messages of a file: line, kind and text."""
    kinds: dict[ast.AST, str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Call(args=args, keywords=keywords):
                for keyword in keywords:
                    if keyword.arg in NAMES:
                        kinds.setdefault(keyword.value, keyword.arg)
                if called(node) in RAISERS:
                    kinds.update((arg, "what") for arg in args)
            case ast.Raise(exc=ast.Call(args=args) as call) if called(call) not in RAISERS:
                kinds.update((arg, called(call)) for arg in args)
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name in NAMES:
                kinds.setdefault(value, name)
    docstrings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    found = sorted(texts(tree, kinds, docstrings, ""), key=lambda message: message[0])
    for line, kind, text in found:
        if len(text.split()) > (3 if not kind else 1) and (kind or other):
            yield line, kind or "text", text


def texts(
    node: ast.AST, kinds: dict[ast.AST, str], docstrings: set[ast.expr], kind: str
) -> Iterator[tuple[int, str, str]]:
    """The texts below a node, each with the kind of message that it is a part of."""
    if node in docstrings and isinstance(node, ast.Constant):
        return
    kind = kinds.get(node, kind)
    if isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    ):
        yield getattr(node, "lineno", 0), kind, " ".join(written(node).split())
        return
    for child in ast.iter_child_nodes(node):
        yield from texts(child, kinds, docstrings, kind)


def written(node: ast.expr) -> str:
    """A text as it stands in the code, its fields in braces."""
    match node:
        case ast.Constant(value=value):
            return str(value)
        case ast.JoinedStr(values=values):
            return "".join(written(value) for value in values)
        case ast.FormattedValue(value=value):
            return "{" + ast.unparse(value) + "}"
    return ast.unparse(node)


def called(call: ast.Call) -> str:
    """The name of the function that a call calls."""
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else ast.unparse(function)


if __name__ == "__main__":
    sys.exit(main())
