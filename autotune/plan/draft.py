"""What the replies so far come to: the candidates they are of, folded into choices. Pure."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.estimate.estimate import Estimate
from autotune.estimate.protocol import EstimateReply
from autotune.plan.choices import Choice, choices
from autotune.plan.estimator import Estimator
from autotune.plan.variants import VariantTask
from autotune.space.bind import SearchSpace


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A plan as far as it is known.

    Attributes:
        space: with the candidates that have an estimate.
        choices: these as a person tells them apart, the best first.
        left_out: how many candidates have none yet.
        stopped: whether the user stopped the traces before they were done.
        by_formula: how many are spread by an engine that was not traced for them.
    """

    space: SearchSpace
    estimates: Mapping[str, Estimate]
    choices: tuple[Choice, ...]
    left_out: int
    by_formula: int
    stopped: bool = False


def draft_of(
    space: SearchSpace,
    estimator: Estimator,
    tasks: Sequence[VariantTask],
    replies: Mapping[int, EstimateReply],
) -> Draft:
    """The draft of the replies to some tasks of a space, by the index of the task."""
    numbers = sorted(replies)
    estimates = estimator.combined([tasks[n] for n in numbers], [replies[n] for n in numbers])
    candidates = tuple(c for c in space.candidates if c.key in estimates)
    known_space = dataclasses.replace(space, candidates=candidates)
    pairs = [(candidate, estimates[candidate.key]) for candidate in candidates]
    folded = choices(known_space, pairs, estimator.job.devices.total)
    return Draft(
        space=known_space,
        estimates=estimates,
        choices=tuple(folded),
        left_out=len(space.candidates) - len(candidates),
        by_formula=sum(len(tasks[n].members) for n in numbers if replies[n].by_formula),
    )
