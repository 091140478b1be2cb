"""Hooks into TRL and torch. A hook has to be there: a version of TRL that has it no more is named,
not worked around."""

import contextlib
from collections.abc import Iterator
from typing import Any

from autotune.facts.stack import version


class MissingHook(RuntimeError):
    """The installed TRL lacks a hook that probes or traces need."""


def require(owner: Any, *names: str) -> None:
    """Check that all these names are in a module or a class of TRL's.

    Raises:
        MissingHook: some are not; it names the versions.
    """
    missing = [name for name in names if not hasattr(owner, name)]
    if missing:
        raise MissingHook(
            f"`{owner.__name__}` has no {', '.join(f'`{name}`' for name in missing)} in TRL "
            f"{version('trl')} (transformers {version('transformers')}); this version of autotune "
            "was made for TRL 1.12 and 1.16"
        )


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any, *, absent_too: bool = False) -> Iterator[None]:
    """Set `owner.name` to `value` within this block.

    Args:
        absent_too: whether the owner may lack it (a builtin, or what only GPUs have).
    """
    # Of a class as it stands there: a static method asked for is a bare function.
    attributes = vars(owner) if isinstance(owner, type) or absent_too else {}
    absent = absent_too and name not in attributes
    original = None if absent else attributes[name] if name in attributes else getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if absent:
            delattr(owner, name)
        else:
            setattr(owner, name, original)
