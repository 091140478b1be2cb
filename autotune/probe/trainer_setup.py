"""What probes of all methods have in common; the child's side (`worker.py`)."""

from pathlib import Path
from typing import Any

from autotune.probe.protocol import ProbeRequest


def configured(
    trains: Any, request: ProbeRequest, ranks: Any, scratch: Path, **fields: Any
) -> tuple[Any, Any]:
    """Return the arguments of the method and of its model, as a rank of the probe has them.

    Args:
        trains: the method's `Family`.
        ranks: the rank's `Ranks`.
        fields: fields that this probe sets.
    """
    overrides = {**trains.overrides, **ranks.overrides, **fields, "output_dir": str(scratch)}
    _, training, model = trains.parse({**request.config, **overrides}, scratch)
    return training, model


def reply_fields(meter: Any, ranks: Any, trainer: Any) -> dict[str, Any]:
    """Return fields of a measurement that a meter of any method knows."""
    return {
        "engine": ranks.checked_engine(trainer),
        "last_loss": meter.last_loss,
        "gradient_norm": meter.gradient_norm,
        "processor_wait_share": meter.processor_wait_share,
    }
