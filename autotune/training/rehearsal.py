"""The messages between parent and child of a verification: its data."""

from dataclasses import dataclass
from typing import Any

from autotune.process.messages import Message

UNTIMED_STEPS = 2
"""Steps of a verification that are not timed: one to warm up, one with the worst batch."""

LOGGING_STEPS = 2
"""A verification logs this seldom, because logging takes time too."""


@dataclass(frozen=True, kw_only=True)
class RehearsalRequest(Message):
    """Write the data of a verification (see `training/rehearsal_worker.py`)."""

    method: str
    rows: str
    raw: str
    target: str
    dataset_config: str | None
    batching: dict[str, Any]
    """Fields of `training.batch_plan.Batching`; where completions are generated, of
    `training.rollout_plan.Rollout`."""
    timed_steps: int
    eval_batch: int
    rows_total: int
    make_weights: list[str]
    """Model folders that need weights before they can be launched."""
    environment: dict[str, str]
    """Variables that show the GPU on which weights are made; none: they are made on the host."""
    processes: int = 1
    """Ranks that the launch has; micro-batches are dealt out to them in turn."""


@dataclass(frozen=True, kw_only=True)
class RehearsalReply(Message):
    """The steps of a verification.

    Attributes:
        untimed: steps before the timed ones.
        timed: steps.
        sizes: tokens with padding of each timed micro-batch, of several ranks of the largest that
            they have at once; None where that is not known.
        tokens: of all timed steps, where the launch does not count them step by step.
    """

    untimed: int
    timed: int
    sizes: list[int] | None
    tokens: int | None = None

    @property
    def steps(self) -> int:
        """Steps of the verification, before and while it is timed."""
        return self.untimed + self.timed
