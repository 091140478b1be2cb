"""Messages between parent and child: plain data in JSON files, and the files of one child.

A folder holds `request.json` (written by the parent), `progress.jsonl` (appended by the child as it
goes), `reply.json` (written by the child, atomically, last), `stdout.log` and `stderr.log`. A reply
is whole or absent.
"""

import json
import math
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import UnionType
from typing import Any, Self, get_args, get_origin


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


class Message:
    """A frozen dataclass that is JSON on disk."""

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self)  # type: ignore[call-overload,no-any-return]

    @classmethod
    def from_plain(cls, data: dict[str, Any]) -> Self:
        """From JSON data; fields that this version does not know are left out."""
        names = {field.name for field in fields(cls)}  # type: ignore[arg-type]
        return cls(**{name: value for name, value in data.items() if name in names})


def matches(value: Any, kind: Any) -> bool:
    """Whether a value is of a field's kind; a number must be finite."""
    kinds = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    plain = tuple(get_origin(kind) or kind for kind in kinds)
    if isinstance(value, bool):
        return bool in plain
    if isinstance(value, float) and not math.isfinite(value):
        return False
    return isinstance(value, plain) or (isinstance(value, int) and float in plain)


def write_json(path: Path, data: Any) -> None:
    """Write JSON so that a reader sees all of it or none of it, whatever kills us."""
    draft = path.with_name(path.name + ".draft")
    with draft.open("w", encoding="utf-8") as file:
        json.dump(data, file, indent=1, ensure_ascii=False, allow_nan=False, sort_keys=True)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def read_json(path: Path) -> Any | None:
    """What `path` holds; None where there is no whole JSON document."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):  # the last: brackets, thousands deep
        return None
