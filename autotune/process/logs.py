"""The logs of a child, kept from filling the disk."""

import contextlib
import os
from pathlib import Path

LIMIT_BYTES = 8 * 2**20
_END_BYTES = 2**20


def ending_of(path: Path) -> str:
    """`; its log ends: ...`, the last line of a log that says something; empty without one."""
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
        """Put the end together once nobody writes any more."""
        with contextlib.suppress(OSError):
            if self._end or self._path.stat().st_size > LIMIT_BYTES:
                self._path.write_bytes((self._end + self._read_end())[-_END_BYTES:])

    def _read_end(self) -> bytes:
        with self._path.open("rb") as file:
            file.seek(max(self._path.stat().st_size - _END_BYTES, 0))
            return file.read(_END_BYTES)
