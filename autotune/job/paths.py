"""Paths as a job file has them: relative to its folder, or names that are no paths at all."""

import contextlib
import re
from pathlib import Path

_PATTERN = re.compile(r"[][*?$\x00-\x1f]|::")
"""What `datasets` and fsspec take for a pattern, a variable of the environment or a chain of files,
and vLLM of a model."""


def why_not_literal(path: str) -> str | None:
    """Return why a path, or what it leads to, is not read as it stands; None: it is."""
    found = _PATTERN.search(path)
    with contextlib.suppress(OSError, RuntimeError, ValueError):
        found = found or _PATTERN.search(str(Path(path).resolve()))
    if found is None:
        return None
    return f"{found.string!r} has {found[0]!r} in it, so that a library may read other files"


def resolve_path(text: str, base: Path) -> str:
    """Return a path relative to the job file's folder, as an absolute one where it exists or must
    be one.

    A name that exists below `base` is a path; so is anything that starts like one. The rest is
    left as it is: a hub id.
    """
    looks_like_path = text.startswith((".", "/", "~")) or Path(text).suffix in {".json", ".jsonl"}
    path = absolute_path(text, base)
    return path if looks_like_path or exists(path) else text


def absolute_path(text: str, base: Path) -> str:
    """Return `text` as a path below `base`; `~` of an unknown user, and in `./~`, is taken as it
    stands."""
    path = Path(text)
    with contextlib.suppress(RuntimeError):
        path = path.expanduser() if text.startswith("~") else path
    return str((base / path).absolute())


def exists(path: str) -> bool:
    """True if there is such a file; a name that no file can have is no error."""
    try:
        return Path(path).exists()
    except (OSError, ValueError):
        return False
