"""What this project takes hold of inside TRL must be there: a version that has it no more is named,
not worked around."""

from typing import Any

from autotune.facts.stack import version


class MissingHook(RuntimeError):
    """The installed TRL has something no more that probes or traces take hold of."""


def require(owner: Any, *names: str) -> None:
    """All these names are in a module or a class of TRL's.

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
