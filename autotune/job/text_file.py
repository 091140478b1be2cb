"""Reads the text files that a user or a run folder names: regular ones, of a sane size."""

from pathlib import Path

from autotune.errors import user_error

MOST_BYTES = 2**20
"""Of a file that somebody writes by hand."""


def text_of(path: Path, kind: str, most_bytes: int = MOST_BYTES, *, hint: str | None = None) -> str:
    """Return what a text file holds; of a pipe, which might never end, nothing is read.

    Args:
        kind: what the file should be, such as `job file`.
        hint: what to do where it is not such a file.

    Raises:
        UserError: there is no such file, it is too large, or no text.
    """
    name = str(path)
    try:
        if not path.exists():
            what = f"cannot read the {kind}: there is no such file"
            raise user_error(what, where=name, hint=hint)
        if not path.is_file():
            what = "a folder" if path.is_dir() else "a pipe or a device"
            raise user_error(f"is {what}, not a {kind}", where=name, hint="name a regular file")
        with path.open("rb") as file:
            content = file.read(most_bytes + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise user_error(f"cannot read the {kind}: {reason}", where=name) from None
    if len(content) > most_bytes:
        size = f"{most_bytes // 2**20} MiB"
        raise user_error(f"a {kind} has at most {size}, but this is larger", where=name)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        what = f"cannot read the {kind}: it is not UTF-8 text"
        raise user_error(what, where=f"{name}:{line}", hint="save it as UTF-8") from None


def is_readable(path: Path, most_bytes: int) -> bool:
    """True if a file is a regular one of at most that size."""
    try:
        return path.is_file() and path.stat().st_size <= most_bytes
    except (OSError, ValueError):
        return False


def readable_text(path: Path, most_bytes: int) -> str | None:
    """Return what a file of at most that size holds; None where there is no such regular file."""
    if not is_readable(path, most_bytes):
        return None
    try:
        return path.read_bytes().decode("utf-8", errors="replace")
    except OSError:
        return None
