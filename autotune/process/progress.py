"""What a child says as it goes: events, a whole line each, appended to a file and read from it."""

import json
from pathlib import Path
from typing import Any


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
