"""The folders of a service and of a worker: nobody but their owner reads what lies in them."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def private_folder(folder: Path) -> Iterator[None]:
    """Make a folder its owner's alone, and what is written within this block, too."""
    before = os.umask(0o077)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(PermissionError):  # it is another's, who lets us write here
            folder.chmod(0o700)
        yield
    finally:
        os.umask(before)
