"""A folder that takes another's place in one step, on disk before it does.

Linux exchanges two names at once (renameat2(2): RENAME_EXCHANGE). A file system that cannot (NFS)
gets two renames; what a kill between them leaves is put right by `finish_replacement`.
"""

import ctypes
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from autotune.process.opener import opener

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
            (draft / name).chmod(0o755)
    _sync(draft)
    if not target.exists():
        draft.rename(target)
    elif not _exchange(draft, target):
        target.rename(_before(target))
        draft.rename(target)
    _sync(target.parent)
    for old in (draft, _before(target)):
        _remove(old)


def finish_replacement(target: Path) -> None:
    """Clear away what a replacement of `target` that was killed has left."""
    before = _before(target)
    if before.exists() and not target.exists():
        before.rename(target)
    for left in (_draft(target), before):
        _remove(left)


def write_whole(path: Path, text: str) -> None:
    """Write a text, and see it on disk."""
    with open(path, "w", encoding="utf-8", opener=opener) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _remove(left: Path) -> None:
    """A folder, or the link that stood in its place; not what a link leads to."""
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
