"""What another global batch means for the learning rate. Pure.

Square-root rule: the learning rate grows with the square root of the batch, for Adam and RMSProp
(Malladi et al., "On the SDEs and Scaling Rules for Adaptive Gradient Algorithms", 2022,
arXiv:2205.10287). Linear rule: it grows with the batch, for SGD (Goyal et al., "Accurate, Large
Minibatch SGD", 2017, arXiv:1706.02677). Known error: both hold while the gradient's noise outweighs
the gradient; neither says when a batch is too large.
"""

import math
from dataclasses import dataclass

from autotune.job.job import Job
from autotune.job.methods import METHODS
from autotune.space.job_shape import rows_of_step
from autotune.space.knobs import Candidate

SQUARE_ROOT, LINEAR = "square-root rule (arXiv:2205.10287)", "linear rule (arXiv:1706.02677)"
_LINEAR_FOR = ("sgd",)


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """A batch that is not the job's own, and what follows.

    Attributes:
        reference_batch: rows of the job's own optimizer step.
        batch: rows of the candidate's.
        reference: the job's learning rate.
        proposed, rule: what the rule for this optimizer makes of it.
        alternative, other_rule: what the other one does.
        applied: whether the proposal is in the configuration.
    """

    reference_batch: int
    batch: int
    reference: float
    proposed: float
    rule: str
    alternative: float
    other_rule: str
    applied: bool

    def lines(self) -> list[str]:
        """Return the remark for whoever reads the configuration, line by line."""
        note = "It is in this file, as the job asks." if self.applied else "Nothing was changed."
        return [
            f"The job's own optimizer step has {self.reference_batch} rows, at a learning rate of "
            f"{self.reference:g}; this one has {self.batch}.",
            f"{self.rule}: {self.proposed:.3g}. {self.other_rule}: {self.alternative:.3g}. {note}",
        ]


def scaling(job: Job, candidate: Candidate) -> Scaling | None:
    """Return what the candidate's batch means for the learning rate; None where it is the job's
    own."""
    length = candidate.values.get("max_length", job.max_length)
    reference = job.batch_sequences(length if isinstance(length, int) else None)
    batch = rows_of_step(candidate, job.devices.total)
    if reference is None or reference == batch:
        return None
    job_rate = job.training.get("learning_rate")
    rate = float(METHODS[job.method].defaults["learning_rate"] if job_rate is None else job_rate)
    ratio = batch / reference
    rules = [(rate * math.sqrt(ratio), SQUARE_ROOT), (rate * ratio, LINEAR)]
    if str(candidate.values.get("optim", "")).startswith(_LINEAR_FOR):
        rules.reverse()
    (proposed, rule), (alternative, other_rule) = rules
    return Scaling(
        reference_batch=reference,
        batch=batch,
        reference=rate,
        proposed=proposed,
        rule=rule,
        alternative=alternative,
        other_rule=other_rule,
        applied=job.learning_rate_scaling == "by_batch",
    )
