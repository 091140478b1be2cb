"""Values of ours as JSON data and back: dataclasses by their annotations, through pydantic.

What is stored, sent to a child or printed passes here, in both directions. Reading is strict: a
number is no text, a list has the length that its tuple has; fields that this version does not know
are left out. Pure.
"""

import json
import math
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from pydantic import TypeAdapter

_T = TypeVar("_T")
NONSENSE = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, AssertionError)
"""What code raises that is given data of another make."""
_TOO_LARGE = 2**63


def to_plain(value: Any, kind: Any = None) -> Any:
    """Return a value as JSON data (dicts, lists, texts, numbers).

    Args:
        kind: the annotation to write it by, where that is not its own class (`list[Record]`).
    """
    return _adapter(kind or type(value)).dump_python(value, mode="json")


def from_plain(kind: type[_T], data: Any) -> _T:
    """Return the value of `kind` that JSON data hold.

    Raises:
        ValueError: they hold none: a field is missing or of another type, a number is not finite
            or does not fit in 64 bits, a text cannot be written. The first such place is named.
    """
    from pydantic import ValidationError

    if not is_storable(data):
        raise ValueError("a number or a text in it cannot be stored")
    try:
        return cast(_T, _adapter(kind).validate_json(json.dumps(data), strict=True))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        what = str(first.get("ctx", {}).get("error") or first["msg"])
        raise ValueError(f"`{place}`: {what}" if place else what) from None


def is_storable(data: Any) -> bool:
    """True if JSON data can be stored anywhere: finite numbers of at most 64 bits, and texts that
    are whole (no half of a surrogate pair)."""
    if isinstance(data, dict):
        return all(map(is_storable, [*data, *data.values()]))
    if isinstance(data, list | tuple):
        return all(map(is_storable, data))
    if isinstance(data, float):
        return math.isfinite(data)
    if isinstance(data, int):
        return abs(data) < _TOO_LARGE
    return not isinstance(data, str) or is_writable(data)


def is_writable(text: str) -> bool:
    """True if a text can be written as UTF-8: it holds no half of a surrogate pair."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


_ADAPTERS: "dict[Any, TypeAdapter[Any]]" = {}


def _adapter(kind: Any) -> "TypeAdapter[Any]":
    from pydantic import TypeAdapter  # 0.1 s, which a child that sends nothing does not pay

    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]
