"""Where what is kept for all runs of a user lies."""

import os
from pathlib import Path


def user_cache() -> Path:
    """`$AUTOTUNE_CACHE`, else `autotune` in the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("AUTOTUNE_CACHE") or Path(home) / "autotune")
