"""Texts and data by strangers: whether they are small and plain enough to be read at all.

Reading YAML takes time and memory without bound where it refers to itself, and so does what comes
after for data that are nested without end, or whose numbers have thousands of digits.
"""

import math
from collections.abc import Iterator
from typing import Any

import yaml

from autotune.errors import Problem, user_error

MOST_TEXT = 32 * 1024
"""Characters of a YAML file: a job has a thousand."""
MOST_JSON = 256 * 1024
"""Characters of a model's config."""
_DEEPEST = 24
_MOST_PARTS = 20_000
_LARGEST = 2**53
"""Beyond it, whole numbers are not the same everywhere."""
_OPENS = (yaml.MappingStartEvent, yaml.SequenceStartEvent)
_CLOSES = (yaml.MappingEndEvent, yaml.SequenceEndEvent)


def check_yaml(text: str, where: str) -> None:
    """Refuse a YAML text that is too long, too deep, or refers to itself.

    Raises:
        UserError: it does. That it is no YAML is said by those who read it.
    """
    check_text(text, where, MOST_TEXT)
    depth = 0
    try:
        for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            if isinstance(event, yaml.AliasEvent):
                hint = "write the value in both places"
                raise user_error("`*names` are not taken over HTTP", where=where, hint=hint)
            depth += isinstance(event, _OPENS)
            depth -= isinstance(event, _CLOSES)
            if depth > _DEEPEST:
                raise user_error(f"is nested deeper than {_DEEPEST} times", where=where)
    except yaml.YAMLError:
        return


def check_text(text: str, where: str, most: int) -> None:
    """Refuse a text that is too long.

    Raises:
        UserError: it is, or has characters that no text has.
    """
    if len(text) > most:
        raise user_error(f"more than {most} characters are not taken", where=where)
    if _is_broken(text):
        raise user_error("has characters that no text has", where=where)


def check_data(data: Any, where: str) -> None:
    """Refuse data that are too many or too deep, or that are not plain.

    Raises:
        UserError: they are.
    """
    for problem in _problems(data, where):
        raise user_error(problem.what, where=problem.where)


def _problems(data: Any, where: str) -> Iterator[Problem]:
    parts, count = [(data, 0)], 0
    while parts:
        part, depth = parts.pop()
        count += 1
        what = _fault(part)
        if depth > _DEEPEST:
            what = f"is nested deeper than {_DEEPEST} times"
        elif count > _MOST_PARTS:
            what = f"has more than {_MOST_PARTS} parts"
        if what is not None:
            yield Problem(where=where, what=what)
            return
        if isinstance(part, dict):
            parts += [(one, depth + 1) for one in (*part.keys(), *part.values())]
        elif isinstance(part, list):
            parts += [(one, depth + 1) for one in part]


def _fault(part: Any) -> str | None:
    if isinstance(part, str):
        return "has a text with characters that no text has" if _is_broken(part) else None
    if isinstance(part, bool) or part is None or isinstance(part, dict | list):
        return None
    if isinstance(part, int):
        return None if abs(part) <= _LARGEST else "has a number that is too large"
    if isinstance(part, float):
        return None if math.isfinite(part) else "has a number that is not finite"
    return f"has a value of the type {type(part).__name__}, which is not taken"


def _is_broken(text: str) -> bool:
    """True if it cannot be written to a file or a database: NUL, or half of a pair."""
    return "\0" in text or any("\ud800" <= character <= "\udfff" for character in text)
