"""The time of the whole job at a measured speed. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.probe.protocol import Measurement
from autotune.units import format_seconds


@dataclass(frozen=True, kw_only=True)
class Work:
    """The length of a training.

    Attributes:
        epochs: over all rows of the data.
        max_steps: optimizer steps, where the job says so: they count in place of the epochs.
    """

    epochs: float
    max_steps: int | None

    def seconds(self, measurement: Measurement) -> float | None:
        """Return seconds of training alone, without evaluation and saving; None where they are not
        known.

        Args:
            measurement: it tells the tokens of a step and of an epoch, and the speed.
        """
        speed = measurement.tokens_per_s
        tokens = self.tokens(measurement)
        return None if tokens is None or not speed else tokens / speed

    def tokens(self, measurement: Measurement) -> float | None:
        """Return the real tokens of the whole job."""
        if self.max_steps is not None:
            per_step = measurement.tokens_per_step
            if per_step is None and measurement.step_time_s and measurement.tokens_per_s:
                per_step = measurement.step_time_s * measurement.tokens_per_s
            return None if per_step is None else self.max_steps * per_step
        per_epoch = measurement.tokens_per_epoch
        return None if per_epoch is None else self.epochs * per_epoch


def work_of(config: Mapping[str, Any]) -> Work:
    """Return the work of a job by its trainer's settings."""
    steps = int(config.get("max_steps") or 0)
    return Work(
        epochs=float(config["num_train_epochs"]),
        max_steps=steps if steps > 0 else None,
    )


@dataclass(frozen=True, kw_only=True)
class Saving:
    """The cost of a search and its gain, against the stack's defaults.

    Attributes:
        probing_s: seconds of all probes.
        job_s: of the job as recommended.
        default_s: of the job as the stack would have it.
        measured: whether the defaults were probed; else their estimate, corrected by the probes.
        default: what it is held against, in words.
    """

    probing_s: float
    job_s: float
    default_s: float
    measured: bool
    default: str = "the stack's defaults"

    def sentence(self) -> str:
        """Return the saving as a sentence."""
        seconds = self.default_s - self.job_s
        cost = f"{format_seconds(self.probing_s)} of probing saved"
        if seconds <= 0:
            return f"{cost} nothing: {self.default} are as fast"
        prefix = "" if self.measured else "an estimated "
        sentence = (
            f"{cost} {prefix}{format_seconds(seconds)} of the {format_seconds(self.default_s)} "
            f"that {self.default} take"
        )
        return sentence if seconds > self.probing_s else f"{sentence}: less than it cost"
