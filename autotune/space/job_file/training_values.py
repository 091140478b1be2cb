"""Whether a value can be that of a training field, by the types that the installed stack's own
source has. Pure.

A trainer would tell of the first one only, when it starts.
"""

import ast
import functools
import json
import math
from collections.abc import Mapping
from typing import Any

from autotune.errors import nearest
from autotune.facts.stack import source_of
from autotune.job.yaml_file import dump_flow
from autotune.plain_data import is_storable

_ENUMERATIONS = {
    "SchedulerType": "trainer_utils.py",
    "IntervalStrategy": "trainer_utils.py",
    "SaveStrategy": "trainer_utils.py",
    "HubStrategy": "trainer_utils.py",
    "OptimizerNames": "training_args.py",
}
"""Types of transformers that list what a field may be, and their files."""
_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a text",
    "dict": "a mapping",
    "None": "null",
}
_ABOVE_ZERO = {"num_train_epochs", "per_device_eval_batch_size"}
_FROM_ZERO = {
    *("learning_rate", "weight_decay", "adam_epsilon", "warmup_steps", "dataloader_num_workers"),
    *("seed", "data_seed"),
}
_SHARES = {"adam_beta1", "adam_beta2", "label_smoothing_factor", "lora_dropout"}
_LARGEST = {"seed": 2**32 - 1}
"""numpy takes no larger one."""
_MAY_BE_NULL = {"max_grad_norm"}
"""What transformers takes for `never`, though its type does not say so."""
_MAY_BE_TEXT = {"loss_type"}
"""Lists of names that may be one name: TRL makes a list of it."""
_LONGEST, _MOST_LISTED = 80, 16
_CODE = "trust_remote_code"
Wrong = tuple[str, str | None]
"""What is wrong, and what to do."""


def wrong_value(name: str, value: Any, type_text: str | None) -> Wrong | None:
    """Return why a field cannot have this value; None: it can, or nothing is known.

    Args:
        type_text: its type, as the stack's source has it (`int | None`).
    """
    if isinstance(value, Mapping) and _CODE in value:
        hint = f"write `training: {{{_CODE}: true}}`: a run and its bundle name that"
        return f"`{name}` holds `{_CODE}`, which is a field of its own", hint
    if type_text is None or (value is None and _null_does(name, type_text)):
        return None
    kinds = _without_files(_alternatives(ast.parse(type_text, mode="eval").body))
    choices = tuple(choice for kind in kinds for choice in _choices(ast.unparse(kind)))
    if choices:  # beside them the plain `str` of the type is for programs
        kinds = [kind for kind in kinds if ast.unparse(kind) not in ("str", *_ENUMERATIONS)]
    if isinstance(value, str) and (value in choices or name in _MAY_BE_TEXT):
        return None
    if any(_fits(kind, value) for kind in kinds):
        return _beyond(name, value)
    if choices and isinstance(value, str):
        what = f"`{name}` cannot be `{value[:_LONGEST]}`"
        return what, nearest(value, choices) or f"choose from {_listed(choices)}"
    told = sorted({_words(kind): None for kind in kinds}, key=lambda word: word == "null")
    words = " or ".join(told)
    if choices:
        words = f"{words} or a text" if words else "a text"
    return f"`{name}` must be {words}, but got `{_told(value)}`", _next_step(value, kinds, choices)


def _without_files(kinds: list[ast.expr]) -> list[ast.expr]:
    """Return the kinds without the text that a mapping may be read from: it can name a file, which
    would be opened unseen."""
    names = {ast.unparse(kind).partition("[")[0] for kind in kinds}
    return [kind for kind in kinds if "dict" not in names or ast.unparse(kind) != "str"]


def _null_does(name: str, type_text: str) -> bool:
    """True if null is as good as false, nothing or no end: of numbers and choices it is not."""
    nulls = type_text in ("bool", "str") or type_text.startswith("list[")
    return name in _MAY_BE_NULL or nulls


def _next_step(value: Any, kinds: list[ast.expr], choices: tuple[str, ...]) -> str | None:
    if choices:
        return f"choose from {_listed(choices)}"
    if isinstance(value, str):
        names = {ast.unparse(kind) for kind in kinds}
        if names & {"int", "float"} and _is_number(value):
            return "write it without quotes"
        if "bool" in names:
            return "write `true` or `false`"
        if any(name.startswith("list[") for name in names):
            return f"write `[{value[:_LONGEST]}]`"
        if any(name.startswith("dict") for name in names):
            return "write `{name: value}`: from a file, or from JSON in a text, it is not read"
    return "leave it out" if value is None else None


def _beyond(name: str, value: Any) -> Wrong | None:
    """Return a number outside what the trainer takes."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    bounds = ""
    if name in _ABOVE_ZERO and value <= 0:
        bounds = "above 0"
    elif name in _FROM_ZERO and value < 0:
        bounds = "at least 0"
    elif name in _SHARES and not 0 <= value <= 1:
        bounds = "from 0 to 1"
    elif value > _LARGEST.get(name, math.inf):
        bounds = f"at most {_LARGEST[name]:,}"
    return (f"`{name}` must be {bounds}, but got `{_told(value)}`", None) if bounds else None


def _alternatives(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp):
        return [*_alternatives(node.left), *_alternatives(node.right)]
    if isinstance(node, ast.Subscript) and ast.unparse(node.value) in ("Optional", "Union"):
        inside = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        null = [ast.Constant(None)] if ast.unparse(node.value) == "Optional" else []
        return [*(kind for part in inside for kind in _alternatives(part)), *null]
    return [node]


def _fits(kind: ast.expr, value: Any) -> bool:
    """True if a value is of a kind; of one that is not known any is."""
    name = ast.unparse(kind.value if isinstance(kind, ast.Subscript) else kind)
    if name == "Literal" and isinstance(kind, ast.Subscript):
        told = ast.literal_eval(kind.slice)
        values = told if isinstance(told, tuple) else (told,)
        return any(type(value) is type(one) and value == one for one in values)
    if name == "None":
        return value is None
    if name == "bool":
        return isinstance(value, bool)
    if name in ("int", "float"):
        wanted = int if name == "int" else (int, float)
        return isinstance(value, wanted) and not isinstance(value, bool)
    if name == "str":
        return isinstance(value, str)
    if name in ("dict", "Mapping"):
        return isinstance(value, Mapping)
    if name in ("list", "tuple", "Sequence"):
        items = kind.slice if isinstance(kind, ast.Subscript) and name != "tuple" else None
        whole = isinstance(value, list)
        return whole and (items is None or all(_fits(items, item) for item in value))
    return True


def _words(kind: ast.expr) -> str:
    name = ast.unparse(kind.value if isinstance(kind, ast.Subscript) else kind)
    if name == "Literal" and isinstance(kind, ast.Subscript):
        told = ast.literal_eval(kind.slice)
        return " or ".join(f"`{_told(v)}`" for v in (told if isinstance(told, tuple) else (told,)))
    if name in ("list", "tuple", "Sequence"):
        item = ast.unparse(kind.slice) if isinstance(kind, ast.Subscript) else ""
        plural = {"str": " of texts", "float": " of numbers", "int": " of whole numbers"}
        return f"a list{plural.get(item, '')}"
    return _WORDS.get(name, "a mapping")


@functools.cache
def _choices(type_name: str) -> tuple[str, ...]:
    """Return what an enumeration of transformers lists; nothing for any other type."""
    file = _ENUMERATIONS.get(type_name)
    if file is None:
        return ()
    classes = (n for n in ast.parse(source_of("transformers", file)).body)
    body = next(
        (n.body for n in classes if isinstance(n, ast.ClassDef) and n.name == type_name), []
    )
    return tuple(
        str(statement.value.value)
        for statement in body
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant)
    )


def _listed(choices: tuple[str, ...]) -> str:
    told = ", ".join(f"`{choice}`" for choice in choices[:_MOST_LISTED])
    more = len(choices) - _MOST_LISTED
    return told if more <= 0 else f"{told} and {more} others that transformers has"


def _told(value: Any) -> str:
    """Return a value as it is written, so that a text that looks like a number shows its quotes."""
    text = dump_flow(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def is_plain(value: Any) -> bool:
    """True if a value is plain finite data, in numbers of at most 64 bits."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return is_storable(value)
