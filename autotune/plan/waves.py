"""The order in which a plan looks at what differs in how much is generated at once. Pure.

What is generated together is the faster the more there is of it, and takes the more memory. A
candidate that generates less at once than one that is safe and otherwise the same is no answer.
"""

from collections.abc import Collection, Iterable, Mapping

from autotune.estimate.estimate import Estimate
from autotune.plan.choices import is_safe
from autotune.plan.narrowing import apart_from
from autotune.space.bind import ALL_AT_ONCE
from autotune.space.knobs import Candidate


def next_wave(
    candidates: Iterable[Candidate], estimates: Mapping[str, Estimate], named: Collection[str]
) -> list[Candidate]:
    """Return the candidates to estimate next, with what is known of the others; none: that is all.

    Args:
        estimates: by key.
        named: knobs that the job gives values for: each of these is looked at.
    """
    searched = [name for name in ALL_AT_ONCE if name not in named]
    families: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        families.setdefault(apart_from(candidate, *searched), []).append(candidate)
    waves = (_next_of(family, estimates, searched) for family in families.values())
    return [candidate for wave in waves for candidate in wave]


def _next_of(
    family: list[Candidate], estimates: Mapping[str, Estimate], searched: Collection[str]
) -> list[Candidate]:
    """Return the candidates with the most at once of which nothing is known; none: one with more is
    safe."""
    amounts: dict[tuple[int, ...], list[Candidate]] = {}
    for candidate in family:
        values = (candidate.values.get(name) for name in searched)
        amount = tuple(value if isinstance(value, int) else 0 for value in values)
        amounts.setdefault(amount, []).append(candidate)
    for amount in sorted(amounts, reverse=True):
        unknown = [one for one in amounts[amount] if one.key not in estimates]
        if unknown:
            return unknown
        if any(is_safe(estimates[one.key]) for one in amounts[amount]):
            return []
    return []
