"""Messages between parent and child: plain data in JSON files, and the files of one child.

A folder holds `request.json` (written by the parent), `progress.jsonl` (appended by the child as it
goes), `reply.json` (written by the child, atomically, last), `stdout.log` and `stderr.log`. A reply
is whole or absent.
"""

import functools
import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Self, TypeVar, get_args, get_origin, get_type_hints

from autotune.job.text_file import is_readable

_T = TypeVar("_T")
_TOO_LARGE = 2**63


@dataclass(frozen=True, kw_only=True)
class ChildFolder:
    """Owns every path of one probe."""

    path: Path

    @property
    def request(self) -> Path:
        """What the parent asks."""
        return self.path / "request.json"

    @property
    def reply(self) -> Path:
        """What the child answers."""
        return self.path / "reply.json"

    @property
    def measurement(self) -> Path:
        """What the parent makes of how it ended."""
        return self.path / "measurement.json"

    @property
    def progress(self) -> Path:
        """What the child says as it goes."""
        return self.path / "progress.jsonl"

    @property
    def stdout(self) -> Path:
        """The child's standard output."""
        return self.path / "stdout.log"

    @property
    def stderr(self) -> Path:
        """The child's standard error."""
        return self.path / "stderr.log"

    @property
    def scratch(self) -> Path:
        """Where the trainer may write."""
        return self.path / "scratch"


MOST_BYTES = 2**28
"""Of a document that is read."""


class Message:
    """A frozen dataclass that is JSON on disk."""

    def plain(self) -> dict[str, Any]:
        """The message as JSON data."""
        return asdict(self)  # type: ignore[call-overload,no-any-return]

    @classmethod
    def from_plain(cls, data: dict[str, Any]) -> Self:
        """The message of JSON data; fields that this version does not know are left out."""
        names = {field.name for field in fields(cls)}  # type: ignore[arg-type]
        return cls(**{name: value for name, value in data.items() if name in names})


def matches(value: Any, kind: Any) -> bool:
    """Whether a value is of an annotation's kind, through and through: the items of a list too, and
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
        return isinstance(value, str) and _is_writable(value)
    plain, arguments = get_origin(kind) or kind, get_args(kind)
    if plain is Literal:
        return value in arguments
    if isinstance(plain, type) and is_dataclass(plain) and isinstance(value, plain):
        kinds = _kinds(plain)
        return all(matches(getattr(value, f.name), kinds[f.name]) for f in fields(plain))
    return isinstance(value, plain) and _items_match(value, plain, arguments)


def checked(value: _T, kind: Any) -> _T:
    """The value, which has to be of that kind, through and through.

    Raises:
        TypeError: it is not.
    """
    if not matches(value, kind):
        raise TypeError("a value in it is of another type")
    return value


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
    """Whether a value can be written as JSON, as far as its numbers and texts go."""
    if isinstance(value, dict):
        return all(map(_is_plain, [*value, *value.values()]))
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, float):
        return math.isfinite(value)
    return not isinstance(value, str) or _is_writable(value)


def _is_writable(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def write_json(path: Path, data: Any) -> None:
    """Write JSON so that a reader sees all of it or none of it, whatever kills us; for its owner
    alone."""
    draft = path.with_name(path.name + ".draft")
    with open(draft, "w", encoding="utf-8", opener=_for_its_owner) as file:
        json.dump(data, file, indent=1, ensure_ascii=False, allow_nan=False, sort_keys=True)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def _for_its_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def read_json(path: Path) -> Any | None:
    """What `path` holds; None where there is no whole JSON document. A pipe or a device is none,
    nor is what no program of ours has written by its size."""
    if not is_readable(path, MOST_BYTES):
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):  # the last: brackets, thousands deep
        return None
