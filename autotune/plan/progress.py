"""The listener to the progress of estimates."""

from autotune.job.job import Job
from autotune.plan.choices import Choice
from autotune.space.bind import SearchSpace


class Progress:
    """A listener to the progress of estimates; this one does nothing."""

    def surveying(self, job: Job) -> None:
        """Note that the stack is being loaded, the model looked at and the data tokenized."""

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
