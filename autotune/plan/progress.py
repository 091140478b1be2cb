"""The listener to how far estimates are."""

from autotune.job.job import Job
from autotune.plan.choices import Choice
from autotune.space.bind import SearchSpace


class Progress:
    """A listener to how far estimates are; this one says nothing."""

    def surveying(self, job: Job) -> None:
        """Begin to load the stack, look at the model and tokenize the data."""

    def starting_anew(self, reason: str) -> None:
        """Note that no process can be forked here: each imports the stack by itself."""

    def measuring(self) -> None:
        """Begin to measure the rates of the device, once for all plans and runs on this machine."""

    def looking_at(self, what: str) -> None:
        """Begin the estimates of this variation of the job."""

    def estimating(self, candidates: int) -> None:
        """Begin to estimate memory and speed of so many candidates."""

    def estimated(self, done: int, of: int) -> None:
        """Note how many of the candidates that have to be traced are estimated."""

    def improved(self, best: Choice, space: SearchSpace, devices: int) -> None:
        """Note that the best choice so far has changed."""

    def nothing_fits(self, limit_bytes: int) -> None:
        """Note that nothing fits in so much; then come the estimates of what would make it fit."""
