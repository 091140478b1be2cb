"""The output of a child: events, a whole line each, appended to a file and read from it; and logs,
kept from filling the disk.
"""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

LIMIT_BYTES = 8 * 2**20
_END_BYTES = 2**20


class Progress:
    """Appends events to the progress file; a whole line at a time."""

    def __init__(self, path: Path):
        self._path = path

    def tell(self, event: str, **values: Any) -> None:
        """Append one event."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"event": event, **values}) + "\n")


class ProgressReader:
    """Reads the whole lines a child has appended since the last call."""

    def __init__(self, path: Path):
        self._path = path
        self._offset = 0

    def new_events(self) -> list[dict[str, Any]]:
        """Return the events since the last call; half a line waits, garbage is passed over."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                chunk = file.read()
        except OSError:
            return []
        end = chunk.rfind(b"\n") + 1
        self._offset += end
        events = []
        for line in chunk[:end].splitlines():
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(event, dict):
                events.append(event)
        return events


def ending_of(path: Path) -> str:
    """Return `; its log ends: ...` with the last line of a log that is not blank; empty without
    one."""
    with contextlib.suppress(OSError):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"; its log ends: {last}" if last else ""
    return ""


class LogTail:
    """A log that is kept from filling the disk: past its limit only the end stays."""

    def __init__(self, path: Path):
        self._path = path
        self._end = b""

    def cut(self) -> None:
        """Empty a log that is too long, and remember its end; the child goes on appending."""
        with contextlib.suppress(OSError):
            if self._path.stat().st_size > LIMIT_BYTES:
                self._end = self._read_end()
                os.truncate(self._path, 0)

    def finish(self) -> None:
        """Put the end of the log together once its writers are gone."""
        with contextlib.suppress(OSError):
            if self._end or self._path.stat().st_size > LIMIT_BYTES:
                self._path.write_bytes((self._end + self._read_end())[-_END_BYTES:])

    def _read_end(self) -> bytes:
        with self._path.open("rb") as file:
            file.seek(max(self._path.stat().st_size - _END_BYTES, 0))
            return file.read(_END_BYTES)
