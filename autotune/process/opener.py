"""Opens what only this program writes into a folder: a link in its place is not followed, as that
would write into a file of somebody else's choice."""

import errno
import os


def opener(path: str, flags: int) -> int:
    """For `open(..., opener=opener)`.

    Raises:
        OSError: it cannot be opened, or is a symbolic link.
    """
    return _opened(path, flags, 0o644)


def private_opener(path: str, flags: int) -> int:
    """Return the same of a file that is its owner's alone."""
    return _opened(path, flags, 0o600)


def _opened(path: str, flags: int, mode: int) -> int:
    try:
        return os.open(path, flags | os.O_NOFOLLOW, mode)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        what = "this is a symbolic link, and only a file of autotune's own may be here; remove it"
        raise OSError(error.errno, what, path) from None
