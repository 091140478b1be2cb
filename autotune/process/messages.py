"""Messages between parent and child: plain data in JSON files, and the files of one child.

A folder holds `request.json` (written by the parent), `progress.jsonl` (appended by the child as it
goes), `reply.json` (written by the child, atomically, last), `stdout.log` and `stderr.log`. A reply
is whole or absent.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from autotune.job.text_file import is_readable
from autotune.plain_data import from_plain, to_plain
from autotune.process.files import private_opener


@dataclass(frozen=True, kw_only=True)
class ChildFolder:
    """Every path of one child."""

    path: Path

    @property
    def request(self) -> Path:
        """The parent's request."""
        return self.path / "request.json"

    @property
    def reply(self) -> Path:
        """The child's reply."""
        return self.path / "reply.json"

    @property
    def measurement(self) -> Path:
        """The parent's record of how it ended."""
        return self.path / "measurement.json"

    @property
    def progress(self) -> Path:
        """The child's events, as it goes."""
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
        """The folder for what the trainer writes."""
        return self.path / "scratch"


MOST_BYTES = 2**28
"""The largest document that is read."""


class Message:
    """A frozen dataclass that is JSON on disk."""

    def plain(self) -> dict[str, Any]:
        """Return the message as JSON data."""
        data: dict[str, Any] = to_plain(self)
        return data

    @classmethod
    def from_plain(cls, data: Any) -> Self:
        """Return the message that JSON data hold; fields unknown to this version are left out.

        Raises:
            ValueError: they hold none.
        """
        return from_plain(cls, data)


def write_json(path: Path, data: Any) -> None:
    """Write JSON so that a reader sees all of it or none of it, whatever kills us; for its owner
    alone."""
    draft = path.with_name(path.name + ".draft")
    with open(draft, "w", encoding="utf-8", opener=private_opener) as file:
        json.dump(data, file, indent=1, ensure_ascii=False, allow_nan=False, sort_keys=True)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def read_json(path: Path) -> Any | None:
    """Return the JSON document of `path`; None where it is not whole: a pipe, a device, or a
    file larger than any that a program of ours writes."""
    if not is_readable(path, MOST_BYTES):
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):  # the last: brackets, thousands deep
        return None
