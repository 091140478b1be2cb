"""What pydantic finds wrong with a job, in our words. Pure."""

import json
from typing import Any

from pydantic import ValidationError

from autotune.errors import nearest
from autotune.job.job import Budget, Devices, Job, Lengths, NoData

_UNION_TAGS = {"bool", "int", "float", "str", "list[str]"}


def details_by_path(error: ValidationError) -> list[tuple[tuple[str | int, ...], Any]]:
    """Pydantic's errors with their paths; those of the members of one union as one."""
    details: dict[tuple[str | int, ...], Any] = {}
    for detail in error.errors():
        path = tuple(p for p in detail["loc"] if p not in {"name", "no_data", "[key]"})
        tag = next((n for n, part in enumerate(path) if n and part in _UNION_TAGS), None)
        if tag is not None:
            form = "a number, a word, true, false, null or a list of words"
            details.setdefault(path[:tag], {**detail, "type": "union", "msg": form})
        else:
            details[path] = detail
    return list(details.items())


def explain(
    detail: Any, path: tuple[str | int, ...], home: str | None = None
) -> tuple[str, str | None]:
    """A pydantic error in our words: what is wrong, and the next step.

    Args:
        home: what to write in place of the field.
    """
    field = ".".join(str(part) for part in path)
    if detail["type"] in ("extra_forbidden", "invalid_key"):
        siblings = _fields_at(path[:-1])
        return f"unknown field `{field}`", home or nearest(str(path[-1]), siblings)
    if detail["type"] == "missing":
        return f"the field `{field}` is missing", None
    message = str(detail["msg"]).removeprefix("Value error, ").removeprefix("Input should be ")
    if not detail["msg"].startswith("Value error"):
        message = f"must be {message}, but got `{as_yaml(detail['input'])}`"
    what, _, hint = message.partition("; write ")
    return f"`{field}`: {what}", f"write {hint}" if hint else home


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
    """A value as the user would write it."""
    return value if isinstance(value, str) else json.dumps(value, default=str)
