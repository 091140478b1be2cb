"""Files that are written whole, through no link, or a folder of them in place of another in one
step.

A link in place of a file of this program is not followed: it would choose another file to be
written. Linux exchanges two names at once (renameat2(2):
RENAME_EXCHANGE). A file system that cannot (NFS) gets two renames; `finish_replacement` puts right
what a kill between them leaves.
"""

import ctypes
import errno
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def put_in_place(target: Path, files: Mapping[str, str]) -> None:
    """Make `target` a folder of these files; scripts among them can be called."""
    target.parent.mkdir(parents=True, exist_ok=True)
    finish_replacement(target)
    draft = _draft(target)
    draft.mkdir()
    for name, text in files.items():
        write_whole(draft / name, text)
        if name.endswith(".sh"):
            make_executable(draft / name)
    _sync(draft)
    if not target.exists():
        draft.rename(target)
    elif not _exchange(draft, target):
        target.rename(_before(target))
        draft.rename(target)
    _sync(target.parent)
    for old in (draft, _before(target)):
        _remove(old)


def make_executable(file: Path) -> None:
    """Let everybody call a script who may read it."""
    mode = file.stat().st_mode
    file.chmod(mode | (mode & 0o444) >> 2)


def finish_replacement(target: Path) -> None:
    """Clear away what a replacement of `target` that was killed has left."""
    before = _before(target)
    if before.exists() and not target.exists():
        before.rename(target)
    for left in (_draft(target), before):
        _remove(left)


def write_whole(path: Path, text: str) -> None:
    """Write a text, and wait until it is on disk."""
    with open(path, "w", encoding="utf-8", opener=opener) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _remove(left: Path) -> None:
    """Remove a folder, or the link that stands in its place; never what a link leads to."""
    if left.is_symlink():
        left.unlink()
    shutil.rmtree(left, ignore_errors=True)


def _draft(target: Path) -> Path:
    return target.with_name(f".{target.name}.draft")


def _before(target: Path) -> Path:
    return target.with_name(f".{target.name}.before")


def _exchange(one: Path, other: Path) -> bool:
    """True if the two names have been exchanged."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    paths = _AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other)
    return bool(rename(*paths, _RENAME_EXCHANGE) == 0)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def opener(path: str, flags: int) -> int:
    """Open a file for `open(..., opener=opener)`.

    Raises:
        OSError: it cannot be opened, or is a symbolic link.
    """
    return _opened(path, flags, 0o644)


def private_opener(path: str, flags: int) -> int:
    """Open a file that is its owner's alone, as `opener` does."""
    return _opened(path, flags, 0o600)


def _opened(path: str, flags: int, mode: int) -> int:
    try:
        return os.open(path, flags | os.O_NOFOLLOW, mode)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        what = "this is a symbolic link, but only autotune's own file may be here; remove it"
        raise OSError(error.errno, what, path) from None


def user_cache() -> Path:
    """Return the folder for what all runs of a user share: `$AUTOTUNE_CACHE`, else `autotune` in
    the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("AUTOTUNE_CACHE") or Path(home) / "autotune")
