"""Output of the command of a work: lines of its growing files, each sent once, whole and in order,
without the folders of this machine."""

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

AT_ONCE = 500
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")


class Shown:
    """Removes the folder of a work, and that of all works, from texts: paths in the work's folder
    become relative to it.

    Args:
        root: the folder that has a folder for each work.
        id: of the work.
    """

    def __init__(self, root: Path, id: str) -> None:
        folders = {str(root), str(root.resolve())}
        escaped = {json.dumps(folder)[1:-1] for folder in folders}
        escaped |= {json.dumps(folder, ensure_ascii=False)[1:-1] for folder in folders}
        names = folders | escaped
        roots = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
        self._places = re.compile(rf"(?<![\w.-])(?:{roots})(?:/{id})?(?:(/)|(?![\w.-]))")

    def text(self, text: str, inside: str = "") -> str:
        """Return a text, which may be JSON, as it is shown.

        Args:
            inside: a prefix for paths in the work's folder.
        """
        return self._places.sub(lambda found: inside if found[1] else ".", text)

    def file(self, content: bytes) -> bytes:
        """Return a file that is handed out; its paths in the work's folder begin with `./`, so that
        they are no ids of a hub."""
        try:
            text = content.decode()
        except UnicodeDecodeError:
            return content
        return self.text(text, "./").encode()


class Tail:
    """The lines of a file that are not known to have arrived.

    Args:
        source: what the service calls the file.
        record: the attempt that wrote it.
        plain: whether its lines are text, not JSON events.
        shown: a line as it may be sent.
    """

    def __init__(
        self, path: Path, source: str, record: int, *, plain: bool, shown: Callable[[str], str]
    ) -> None:
        self.source, self.record = source, record
        self._path, self._plain, self._shown = path, plain, shown
        self._place, self._lines = 0, 0
        self._read: list[dict[str, Any]] = []

    @property
    def first(self) -> int:
        """The number of the first line that `waiting` has, from 0 on."""
        return self._lines

    def waiting(self) -> list[dict[str, Any]]:
        """Return the next lines, at most `AT_ONCE`."""
        if len(self._read) < AT_ONCE and self._path.is_file():
            with self._path.open("rb") as file:
                file.seek(self._place)
                chunk = file.read(1 << 20)
            whole = chunk[: chunk.rfind(b"\n") + 1]
            self._place += len(whole)
            lines = whole.decode(errors="replace").split("\n")[:-1]
            self._read += map(self._line, lines)
        return self._read[:AT_ONCE]

    def arrived(self, lines: int) -> None:
        """Drop the lines that have arrived, so many of the file in all."""
        self._read = self._read[lines - self._lines :]
        self._lines = lines

    def _line(self, line: str) -> dict[str, Any]:
        if not self._plain:
            event: dict[str, Any] = json.loads(self._shown(line))
            return event
        text = self._shown(_CONTROL.sub("", line.rpartition("\r")[2]))
        return {"utc": round(time.time(), 3), "kind": "line", "data": {"text": text[:4000]}}
