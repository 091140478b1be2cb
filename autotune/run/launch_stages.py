"""The stages of a verification, told one by one as they are over, with the seconds each took.

A trainer says when it has logged, evaluated and ended. It saves between its evaluation and its end.
"""

import time
from collections.abc import Callable

from autotune.training.rehearsal import LOGGING_STEPS, RehearsalReply

LOGGED = ("{'loss'", "{'eps'")
"""How the lines begin that trainers say of steps; the second is PPOTrainer's."""
_EVALUATED, _ENDED = "{'eval_", "{'train_runtime'"
DATA, WORST_BATCH, TIMED_STEPS = "data", "worst_batch", "timed_steps"
EVALUATION, SAVE, END, SOAK = "evaluation", "save", "end", "soak"
STAGE_TEXTS = {
    DATA: "rows for it are written",
    WORST_BATCH: "it was launched, and went through the worst batch",
    TIMED_STEPS: "steps to compare with the promise",
    EVALUATION: "an evaluation",
    SAVE: "a save",
    END: "its end",
    SOAK: "a soak",
}
"""What is said of each."""

Heard = Callable[[str, float], None]
"""Hears the name of a stage that is over, and its seconds."""


class Stages:
    """Counts the seconds of each stage; a stage that comes again counts on.

    Args:
        heard: hears of each stage at once.
    """

    def __init__(self, heard: Heard) -> None:
        self.seconds: dict[str, float] = {}
        self._heard, self._began = heard, time.monotonic()

    def over(self, stage: str, seconds: float) -> None:
        """A stage is over."""
        self.seconds[stage] = round(self.seconds.get(stage, 0.0) + seconds, 3)
        self._heard(stage, seconds)

    def data_written(self) -> None:
        """The rows of the launch are written."""
        self.over(DATA, time.monotonic() - self._began)


class LaunchStages:
    """Hears the lines of one launch.

    Args:
        stages: is told of each.
        rehearsal: which steps the launch goes through.
    """

    def __init__(self, stages: Stages, rehearsal: RehearsalReply) -> None:
        self._stages, self._rehearsal = stages, rehearsal
        self._step, self._last = 0, 0.0
        self._left = [WORST_BATCH, TIMED_STEPS, EVALUATION, SAVE]

    def hear(self, when_s: float, line: str) -> None:
        """A line came so many seconds after the start."""
        text = line.lstrip()
        if text.startswith(LOGGED):
            self._step += LOGGING_STEPS
            if self._step == self._rehearsal.untimed:
                self._over(WORST_BATCH, when_s)
            elif self._step == self._rehearsal.steps:
                self._over(TIMED_STEPS, when_s)
        elif text.startswith(_EVALUATED):
            self._over(EVALUATION, when_s)
        elif text.startswith(_ENDED):
            self._over(SAVE, when_s)

    def ended(self, seconds: float) -> None:
        """The launch has ended by itself, so many seconds after its start."""
        self._over(END, seconds)

    def _over(self, stage: str, when_s: float) -> None:
        if stage == END or stage in self._left:
            self._left = self._left[self._left.index(stage) + 1 :] if stage in self._left else []
            self._stages.over(stage, when_s - self._last)
            self._last = when_s
