"""What pydantic finds wrong with a job, in our words; and where the parts of a job stand: in lines
of its file or, of data without one, by field. Pure."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from autotune.errors import Problem, nearest
from autotune.job.job import Budget, Devices, Job, Lengths, NoData
from autotune.job.yaml_file import Path_

_LONGEST = 200
"""Characters of a value in a message."""
_MOST_SHOWN = 100
_UNION_TAGS = {"bool", "int", "float", "str", "list[str]"}


def details_by_path(error: ValidationError) -> list[tuple[tuple[str | int, ...], Any]]:
    """Return pydantic's errors with their paths; those of the members of one union as one."""
    details: dict[tuple[str | int, ...], Any] = {}
    for detail in error.errors():
        path = _without_marks(detail["loc"])
        tag = next((n for n, part in enumerate(path) if n and part in _UNION_TAGS), None)
        if tag is not None:
            form = "a number, a word, true, false, null or a list of words"
            details.setdefault(path[:tag], {**detail, "type": "union", "msg": form})
        else:
            details[path] = detail
    return list(details.items())


def _without_marks(location: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """Return a place in a job without what pydantic adds: the kind of a dataset, the mark of a key.
    A field of the user's may be called the same."""
    kind = location[:2] in {("dataset", "name"), ("dataset", "no_data")}
    rest = location[2:] if kind else location[1:]
    return (*location[:1], *(rest[:-1] if rest[-1:] == ("[key]",) else rest))


UNKNOWN = ("extra_forbidden", "invalid_key")
"""Pydantic's words for a field that there is not."""
_RULES = {
    # What pydantic calls a rule, and how we say it.
    "greater_than": "above {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "below {lt}",
    "less_than_equal": "at most {le}",
    "finite_number": "a finite number",
    **dict.fromkeys(("int_type", "int_from_float", "int_parsing"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    "string_type": "a text",
    "bool_type": "true or false",
    "list_type": "a list",
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "a mapping"),
}


def explain(
    detail: Any, path: tuple[str | int, ...], home: str | None = None
) -> tuple[str, str | None]:
    """Return a pydantic error in our words: what is wrong, and the next step.

    Args:
        home: what to write in place of the field, or of its value.
    """
    field = ".".join(str(part) for part in path)
    if detail["type"] in UNKNOWN:
        siblings = _fields_at(path[:-1])
        return f"unknown field `{field}`", home or nearest(str(path[-1]), siblings)
    if detail["type"] == "missing":
        return f"the field `{field}` is missing", None
    if detail["type"] == "string_too_short":
        return f"`{field}` must not be empty", home
    what, _, hint = _message(detail).partition("; write ")
    return f"`{field}`: {what}", f"write {hint}" if hint else home


def _message(detail: Any) -> str:
    """Return the rule, and what came."""
    told = str(detail["msg"])
    if told.startswith("Value error, "):
        return told.removeprefix("Value error, ")
    bounds = {name: _number(value) for name, value in detail.get("ctx", {}).items()}
    rule = _RULES.get(detail["type"], told.removeprefix("Input should be ")).format_map(bounds)
    return f"must be {rule}, but got `{as_yaml(detail['input'])}`"


def _number(value: Any) -> Any:
    return f"{value:,.15g}" if isinstance(value, int | float) else value


def _fields_at(path: tuple[str | int, ...]) -> list[str]:
    rooms: dict[str, Any] = {
        "devices": Devices,
        "budget": Budget,
        "dataset": NoData,
        "lengths": Lengths,
    }
    room = rooms.get(str(path[-1]), Job) if path else Job
    return list(room.model_fields)


def as_yaml(value: Any) -> str:
    """Return a value as the user would write it; of a long one the beginning."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def shown(problems: list[Problem], name: str) -> list[Problem]:
    """Return the problems as a user can read them: a list of choices once, and of very many the
    first."""
    told: set[str] = set()
    kept = []
    for problem in problems[:_MOST_SHOWN]:
        hint = problem.hint or ""
        again = hint in told and problem.what.startswith(("unknown field", "no knob"))
        kept.append(replace(problem, hint=None) if again else problem)
        told |= {hint} if hint.startswith("choose from ") else set()
    if len(problems) > _MOST_SHOWN:
        kept.append(Problem(where=name, what=f"and {len(problems) - _MOST_SHOWN:,} more problems"))
    return kept


Positions = dict[Path_, str]
"""What a message calls each part, such as `job.yaml:6` or `training.learning_rate`."""
_MOST_NAME = 200
"""Characters of a field's name in a message."""


def line_positions(lines: Mapping[Path_, int], name: str) -> Positions:
    """Return the positions in a file, by the line of each part."""
    return {path: f"{name}:{line}" for path, line in lines.items()}


def field_positions(data: Mapping[str, Any]) -> Positions:
    """Return the positions in data that came without a text, by the names of their fields."""
    positions: Positions = {}
    parts: list[tuple[Path_, Any]] = [((), data)]
    while parts:
        path, part = parts.pop()
        if path:
            positions[path] = field_name(path)
        if isinstance(part, Mapping):
            parts += [((*path, str(name)), value) for name, value in part.items()]
        elif isinstance(part, list):
            parts += [((*path, index), value) for index, value in enumerate(part)]
    return positions


def field_name(path: Path_) -> str:
    """Return the name of a field, with those that it stands in."""
    return ".".join(map(str, path))[:_MOST_NAME]


def position_of(path: Path_, positions: Positions) -> str | None:
    """Return the position of a part, or of the nearest that it stands in; None: neither is
    given."""
    for length in range(len(path), 0, -1):
        if path[:length] in positions:
            return positions[path[:length]]
    return None
