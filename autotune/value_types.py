"""Whether values that came from a file are of the kinds that annotations name, through and through.
Pure."""

import functools
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

_T = TypeVar("_T")
_TOO_LARGE = 2**63


def matches(value: Any, kind: Any) -> bool:
    """True if a value is of an annotation's kind, through and through: the items of a list too, and
    the fields of a dataclass. A number must be finite and fit in 64 bits, a text be writable."""
    if isinstance(kind, UnionType):
        return any(matches(value, one) for one in get_args(kind))
    if kind is Any:
        return _is_plain(value)
    if kind is None or kind is NoneType:
        return value is None
    if isinstance(value, bool) or kind is bool:
        return isinstance(value, bool) and kind is bool
    if kind in (int, float):
        if isinstance(value, float):
            return kind is float and math.isfinite(value)
        return isinstance(value, int) and abs(value) < _TOO_LARGE
    if kind is str:
        return isinstance(value, str) and is_writable(value)
    plain, arguments = get_origin(kind) or kind, get_args(kind)
    if plain is Literal:
        return value in arguments
    if isinstance(plain, type) and is_dataclass(plain) and isinstance(value, plain):
        kinds = _kinds(plain)
        return all(matches(getattr(value, f.name), kinds[f.name]) for f in fields(plain))
    if hasattr(plain, "_fields"):  # a NamedTuple
        kinds_of_items = tuple(_kinds(plain).values())
        return isinstance(value, plain) and _items_match(value, tuple, kinds_of_items)
    return isinstance(value, plain) and _items_match(value, plain, arguments)


def checked(value: _T, kind: Any) -> _T:
    """Return the value, which has to be of that kind, through and through.

    Raises:
        TypeError: it is not.
    """
    if not matches(value, kind):
        raise TypeError(f"{_misfit(value)} has a value of another type")
    return value


def _misfit(value: Any) -> str:
    """Return the innermost part of a dataclass that is not of its kind."""
    if not is_dataclass(value) or isinstance(value, type):
        return "it"
    kinds = get_type_hints(type(value))
    name = next(f.name for f in fields(value) if not matches(getattr(value, f.name), kinds[f.name]))
    part = getattr(value, name)
    return _misfit(part) if is_dataclass(part) else f"`{name}` of {type(value).__name__}"


@functools.cache
def _kinds(plain: type) -> dict[str, Any]:
    return get_type_hints(plain)


def _items_match(value: Any, plain: Any, kinds: tuple[Any, ...]) -> bool:
    if not kinds:
        return True
    if issubclass(plain, Mapping):
        return all(matches(k, kinds[0]) and matches(v, kinds[1]) for k, v in value.items())
    if plain is tuple and kinds[-1] is not Ellipsis:
        return len(value) == len(kinds) and all(map(matches, value, kinds))
    return all(matches(item, kinds[0]) for item in value)


def _is_plain(value: Any) -> bool:
    """True if a value can be written as JSON, as far as its numbers and texts go."""
    if isinstance(value, dict):
        return all(map(_is_plain, [*value, *value.values()]))
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, float):
        return math.isfinite(value)
    return not isinstance(value, str) or is_writable(value)


def is_writable(text: str) -> bool:
    """True if a text can be written as UTF-8: it holds no half of a character (lone surrogate)."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
