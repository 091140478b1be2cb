"""Files that are written whole, through no link, or a folder of them in place of another in one
step; what a user names to be written.

A link in place of a file or a folder of this program is not followed: it would choose what is
written, or removed. Linux exchanges two names at once (renameat2(2): RENAME_EXCHANGE). A file
system that cannot (NFS) gets two renames; `finish_replacement` puts right what a kill between them
leaves.
"""

import contextlib
import ctypes
import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from autotune.errors import user_error

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_DRAFT, _BEFORE = ".autotune-", "before"
"""Begins the name of a folder for a draft; in it, what the draft takes the place of."""
_NOT_OURS = (
    "only a file of autotune's own may be here, and this is a link, a pipe or has a second name; "
    "remove it, or copy the folder (`cp -a`)"
)


def put_in_place(target: Path, files: Mapping[str, str]) -> None:
    """Make `target` a folder of these files; scripts among them can be called."""
    target.parent.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix=_DRAFT, dir=target.parent))
    draft = place / "new"
    try:
        draft.mkdir()
        for name, text in files.items():
            write_whole(draft / name, text)
            if name.endswith(".sh"):
                make_executable(draft / name)
        _sync(draft)
        if not os.path.lexists(target):
            draft.rename(target)
        elif not _exchange(draft, target):
            target.rename(place / _BEFORE)
            draft.rename(target)
        _sync(target.parent)
    finally:
        _clear(place, target)


def make_executable(file: Path) -> None:
    """Let everybody call a script who may read it."""
    mode = file.stat().st_mode
    file.chmod(mode | (mode & 0o444) >> 2)


def finish_replacement(target: Path) -> None:
    """Clear away what a replacement of `target`, in a folder of ours, has left that was killed."""
    for place in target.parent.glob(f"{_DRAFT}*"):
        _clear(place, target)


def _clear(place: Path, target: Path) -> None:
    """Remove the folder of a draft; what was to be replaced, and was not, is put back."""
    if os.path.lexists(place / _BEFORE) and not os.path.lexists(target):
        (place / _BEFORE).rename(target)
    shutil.rmtree(place, ignore_errors=True)


def write_whole(path: Path, text: str) -> None:
    """Write a text, and wait until it is on disk."""
    with open(path, "w", encoding="utf-8", opener=opener) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


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
        OSError: it cannot be opened, or is no file that has this name alone: a link, a pipe.
    """
    return _opened(path, flags, 0o644)


def private_opener(path: str, flags: int) -> int:
    """Open a file that is its owner's alone, as `opener` does."""
    return _opened(path, flags, 0o600)


def _opened(path: str, flags: int, mode: int) -> int:
    try:
        # Nothing is waited for, and nothing cut, before it is known what it is.
        kept = flags & ~os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(path, kept, mode)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):
            raise
        raise OSError(error.errno, _NOT_OURS, path) from None
    found = os.fstat(descriptor)
    if stat.S_ISFIFO(found.st_mode) or (stat.S_ISREG(found.st_mode) and found.st_nlink > 1):
        os.close(descriptor)
        raise OSError(errno.EINVAL, _NOT_OURS, path)
    if flags & os.O_TRUNC and stat.S_ISREG(found.st_mode):
        os.ftruncate(descriptor, 0)
    return descriptor


def refuse_links_out(folder: Path, exempt: Mapping[str, bool]) -> None:
    """Refuse what lies in a folder of ours and leads out of it: links there, and links in each of
    its folders that leave that one.

    Args:
        exempt: folders where links to files may lead anywhere; True: any link may.

    Raises:
        UserError: there is one.
    """
    whole = folder.resolve()
    for place, folders, files in os.walk(folder):
        top = Path(place).relative_to(folder).parts[:1]
        if not top:
            folders[:] = [name for name in folders if not exempt.get(name)]
        for name in folders + (files if not top or top[0] not in exempt else []):
            refuse_link_out(Path(place, name), whole / (top or (name,))[0])


def refuse_link_out(path: Path, folder: Path) -> None:
    """Refuse a link that leads out of a folder, whose own path has none.

    Raises:
        UserError: `path` is one.
    """
    if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(folder):
        what = "this link leads elsewhere, and autotune writes and removes files here"
        raise user_error(what, where=str(path), hint="look who made it; then remove it")


def refuse_used(folder: Path) -> None:
    """Refuse a folder that is neither new nor empty, or that cannot be written.

    Raises:
        UserError: something is there, or nothing can be.
    """
    is_new, hint = not os.path.lexists(folder), "choose another one"
    if not is_new and not folder.is_dir():
        what = "a link that leads nowhere" if folder.is_symlink() else "a file"
        raise user_error(f"this is {what}, not a folder", where=str(folder), hint=hint)
    with writing(folder):
        if not is_new and any(folder.iterdir()):
            raise user_error("the folder is not empty", where=str(folder), hint=hint)
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
        if is_new:
            folder.rmdir()


@contextlib.contextmanager
def writing(place: Path) -> Iterator[None]:
    """Write what a user has named.

    Raises:
        UserError: nothing can be written there.
        OSError: the disk is full.
    """
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise
        what = f"this cannot be written: {error.strerror}"
        raise user_error(what, where=str(place), hint="choose another one") from None


def user_cache() -> Path:
    """Return the folder for what all runs of a user share: `$AUTOTUNE_CACHE`, else `autotune` in
    the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("AUTOTUNE_CACHE") or Path(home) / "autotune")
