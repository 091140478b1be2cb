"""Where the parts of a job stand: in lines of its file or, of data without one, by field. Pure."""

from collections.abc import Mapping
from typing import Any

from autotune.job.yaml_file import Path_

Positions = dict[Path_, str]
"""What a message calls each part, such as `job.yaml:6` or `training.learning_rate`."""
_MOST_NAME = 200
"""Characters of a field's name in a message."""


def line_positions(lines: Mapping[Path_, int], name: str) -> Positions:
    """Positions in a file, by the line of each part."""
    return {path: f"{name}:{line}" for path, line in lines.items()}


def field_positions(data: Mapping[str, Any]) -> Positions:
    """Positions in data that came without a text, by the names of their fields."""
    positions: Positions = {}
    parts: list[tuple[Path_, Any]] = [((), data)]
    while parts:
        path, part = parts.pop()
        if path:
            positions[path] = field_name(path)
        if isinstance(part, Mapping):
            parts += [((*path, str(name)), value) for name, value in part.items()]
        elif isinstance(part, list):
            parts += [((*path, index), value) for index, value in enumerate(part)]
    return positions


def field_name(path: Path_) -> str:
    """Return the name of a field, with those that it stands in."""
    return ".".join(map(str, path))[:_MOST_NAME]


def position_of(path: Path_, positions: Positions) -> str | None:
    """Return the position of a part, or of the nearest that it stands in; None: neither is
    given."""
    for length in range(len(path), 0, -1):
        if path[:length] in positions:
            return positions[path[:length]]
    return None
