"""What is known of a plan: candidates with an estimate, folded into choices. Pure."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from autotune.estimate.estimate import Estimate
from autotune.plan.choices import Choice, choices
from autotune.space.bind import SearchSpace
from autotune.space.knobs import Candidate


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
    space: SearchSpace, estimates: Mapping[str, Estimate], devices: int, *, by_formula: int
) -> Draft:
    """Return the draft of a space of which these estimates are known, by key.

    Args:
        devices: how many the job has.
    """
    candidates = tuple(c for c in space.candidates if c.key in estimates)
    known_space = dataclasses.replace(space, candidates=candidates)
    pairs = [(candidate, estimates[candidate.key]) for candidate in candidates]
    return Draft(
        space=known_space,
        estimates=estimates,
        choices=tuple(choices(known_space, pairs, devices)),
        left_out=len(space.candidates) - len(candidates),
        by_formula=by_formula,
    )


def with_candidate(draft: Draft, candidate: Candidate, estimate: Estimate, devices: int) -> Draft:
    """Return the draft with a candidate that its space lacks."""
    space = dataclasses.replace(draft.space, candidates=(*draft.space.candidates, candidate))
    estimates = {**draft.estimates, candidate.key: estimate}
    return draft_of(space, estimates, devices, by_formula=draft.by_formula)
