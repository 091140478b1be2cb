"""Whether the model of a script checkpoints, whatever switched that on."""

from typing import Any

CHECKPOINTING = ("activation_checkpointing", "gradient_checkpointing")
"""What versions of transformers call it."""


def checkpointing_of(model: Any) -> bool | None:
    """Return whether a model checkpoints; None: it does not say."""
    values = [getattr(model, f"is_{name}", None) for name in CHECKPOINTING]
    flags = [value for value in values if isinstance(value, bool)]
    return flags[0] if flags else None
