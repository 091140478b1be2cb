"""The listener to the progress of estimates."""

from dataclasses import dataclass

from autotune.job.job import Job
from autotune.plan.choices import Choice
from autotune.space.bind import SearchSpace

MEMORY_ERROR, SPEED_ERROR = 0.2, 0.3
"""Nine in ten of the formula's figures are no further than that from what an A100, H100 and H200
have measured; from traces 7 and 13% (`benchmarks/first_line`)."""


@dataclass(frozen=True, kw_only=True)
class FirstEstimate:
    """The best choice by formula; its estimate does not fit where nothing does.

    Attributes:
        row_length: what each row of data that was not looked at is taken to have; None: its lengths
            are stated.
    """

    best: Choice
    space: SearchSpace
    limit_bytes: int
    row_length: int | None


class Progress:
    """A listener to the progress of estimates; this one does nothing."""

    def surveying(self, job: Job) -> None:
        """Note that the stack is being loaded, the model looked at and the data tokenized."""

    def by_formula(self, first: FirstEstimate) -> None:
        """Note the best choice by formula, before anything is loaded or traced."""

    def starting_anew(self, reason: str) -> None:
        """Note that no process can be forked here: each imports the stack by itself."""

    def measuring(self) -> None:
        """Note that the rates of the device are being measured, once for all plans and runs
        here."""

    def looking_at(self, what: str) -> None:
        """Note that the estimates of this variation of the job begin."""

    def estimating(self, candidates: int) -> None:
        """Note that memory and speed of so many candidates are being estimated."""

    def estimated(self, done: int, of: int) -> None:
        """Note how many of the candidates that have to be traced are estimated."""

    def improved(self, best: Choice, space: SearchSpace, devices: int) -> None:
        """Note that the best choice so far has changed."""

    def nothing_fits(self, limit_bytes: int) -> None:
        """Note that nothing fits within the limit; estimates of changes that would make it fit
        follow."""
