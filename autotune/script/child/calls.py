"""Whether a script trains again after the training that is looked at, read from its source.

Nothing after the first training is run, so it is read: in each function of the script that is at
work now, and at its top, a loop around the call, the same call further down, or a trainer's
`train()` further down.
"""

import ast
import itertools
import os
import re
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType

_LIBRARIES = tuple(
    str(Path(folder).resolve()) + os.sep
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
    if (folder := sysconfig.get_path(name))
)
_PACKAGES = re.compile(r"/(site|dist)-packages/")
"""Of any environment: one may see another's."""
_CHILD = str(Path(__file__).resolve().parent) + os.sep
_AUTOTUNE = str(Path(__file__).resolve().parents[2]) + os.sep
Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef


def other_trainings() -> list[str]:
    """Return the places, as `train.py:57`, at which the script that called this trains another
    time."""
    return [place for frame in _frames_of_script() for place in _again(frame)]


def _frames_of_script() -> Iterator[FrameType]:
    """Yield the frames of the script, from the innermost on; not of who runs it."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        file = str(Path(frame.f_code.co_filename).resolve())
        is_main = frame.f_globals.get("__name__") == "__main__"
        if not is_main and file.startswith(_AUTOTUNE):
            if not file.startswith(_CHILD):  # who calls the function that makes a Trainer
                return
        elif is_main or not (file.startswith(_LIBRARIES) or _PACKAGES.search(file)):
            yield frame
            if is_main and frame.f_code.co_name == "<module>":
                return
        frame = frame.f_back


def _again(frame: FrameType) -> Iterator[str]:
    file = Path(frame.f_code.co_filename)
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return
    scope, line = _scope(tree, frame.f_code), frame.f_lineno
    calls = [node for node in _nodes(scope, line) if isinstance(node, ast.Call)]
    texts = {ast.unparse(node.func) for node in calls if _place(node) == _current_place(frame)}
    for node in _nodes(scope, line):
        if isinstance(node, ast.For | ast.While) and node.lineno < line <= (node.end_lineno or 0):
            yield f"{file.name}:{node.lineno} (a loop around it)"
    for node in calls:
        if node.lineno > line and (ast.unparse(node.func) in texts or _is_training(node, scope)):
            yield f"{file.name}:{node.lineno}"


def _scope(tree: ast.Module, code: CodeType) -> Scope:
    """Return the function of a frame; the module itself where it is none."""
    for node in ast.walk(tree):
        first = min((d.lineno for d in getattr(node, "decorator_list", [])), default=None)
        if (
            isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and node.name == code.co_name
            and code.co_firstlineno in (node.lineno, first)
        ):
            return node
    return tree


def _nodes(scope: Scope, line: int = 0) -> Iterator[ast.AST]:
    """Yield what a function runs itself: what other functions hold is theirs. Where it is at
    `line`, the other branches of its conditions are not run any more."""
    waiting: list[ast.AST] = list(scope.body)
    while waiting:
        node = waiting.pop(0)
        yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if isinstance(node, ast.If | ast.Try) and _holds(node.body, line):
            rest = node.body if isinstance(node, ast.If) else [*node.body, *node.orelse]
            waiting += [*rest, *(node.finalbody if isinstance(node, ast.Try) else [])]
        else:
            waiting += ast.iter_child_nodes(node)


def _holds(body: list[ast.stmt], line: int) -> bool:
    return body[0].lineno <= line <= (body[-1].end_lineno or 0)


def _place(node: ast.expr) -> tuple[int | None, ...]:
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


def _current_place(frame: FrameType) -> tuple[int | None, ...]:
    """Return where the call stands that a frame waits for."""
    places = itertools.islice(frame.f_code.co_positions(), frame.f_lasti // 2, None)
    return next(places)


def _is_training(call: ast.Call, scope: Scope) -> bool:
    """True if a call is `train()` of what is called a trainer, or was made by what is."""
    function = call.func
    if not (isinstance(function, ast.Attribute) and function.attr == "train"):
        return False
    owner = function.value
    if isinstance(owner, ast.Call):
        return _names_trainer(owner.func)
    if _names_trainer(owner):
        return True
    name = owner.id if isinstance(owner, ast.Name) else None
    values = [
        node.value
        for node in _nodes(scope)
        if isinstance(node, ast.Assign)
        and any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
    ]
    return any(isinstance(v, ast.Call) and _names_trainer(v.func) for v in values)


def _names_trainer(node: ast.expr) -> bool:
    """True if the last name of an expression is a trainer's: `trainer.model` is none."""
    return "trainer" in ast.unparse(node).rpartition(".")[2].lower()
