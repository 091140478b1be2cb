"""The candidates of a plan, folded into choices. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.estimate.estimate import Estimate
from autotune.job.job import KnobValue
from autotune.space.bind import SearchSpace
from autotune.space.checkpointing import CHECKPOINTING, keeps_activations_away
from autotune.space.knobs import (
    ACCUMULATION,
    MICRO_BATCH,
    NUM_PROCESSES,
    TENSOR_PARALLEL,
    USE_VLLM,
    VLLM_MODE,
    Candidate,
    value_label,
)
from autotune.space.memory_order import expected_leanness
from autotune.space.sharding.sharding import engine_name, sharding_of

SAFE = 0.05
"""A candidate is safe where it runs out of memory with at most this probability."""
AS_FAST = 0.01
"""Relative difference in speed below which the simplest candidate stands for its choice."""
_ALWAYS = (MICRO_BATCH, ACCUMULATION, CHECKPOINTING, NUM_PROCESSES)
_OF_VLLM = (USE_VLLM, VLLM_MODE, TENSOR_PARALLEL)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A way to train, as the best of its candidates.

    Attributes:
        candidate: the fastest that is safe; else the fastest that fits; else the leanest.
        folded: how many candidates there are of it.
        unsafe: the fastest of them that is not safe, with its estimate; None: there is none.
    """

    candidate: Candidate
    estimate: Estimate
    folded: int
    unsafe: tuple[Candidate, Estimate] | None = None

    @property
    def safe(self) -> bool:
        """True if its candidate hardly ever runs out of memory."""
        return is_safe(self.estimate)


def is_safe(estimate: Estimate) -> bool:
    """True if a candidate fits, and hardly ever runs out of memory, the host's among it."""
    return estimate.fits and max(estimate.p_oom, estimate.p_host_oom or 0.0) <= SAFE


Place = tuple[bool, bool, float, bool, int, int]


def order(candidate: Candidate, estimate: Estimate, devices: int) -> Place:
    """Return the sort key of a candidate: the safe first, then what fits; the fastest, then the
    leanest.

    What is about as fast comes before something of which a cost is not known, and before what keeps
    a part of the training on the host, too. Where no speed is known, of what is safe that comes
    first which needs no offloading, then what has the fewest micro-steps.
    """
    safe, values = is_safe(estimate), candidate.values
    offloads = sharding_of(values, devices).offloads
    certain = 1 - AS_FAST if estimate.left_out or offloads else 1.0
    unknown = safe and estimate.tokens_per_s is None
    return (
        not safe,
        not estimate.fits,
        -certain * (estimate.tokens_per_s or 0.0),
        unknown and (offloads or keeps_activations_away(values)),
        candidate.gradient_accumulation_steps if unknown else 0,
        estimate.peak_memory_bytes,
    )


def leanness(pair: tuple[Candidate, Estimate]) -> tuple[bool, int, tuple[Any, ...]]:
    """Return the sort key of a candidate by its memory, bounds last; where estimates are the same,
    by the memory that it should take."""
    candidate, estimate = pair
    return estimate.at_least, estimate.peak_memory_bytes, expected_leanness(candidate)


def choices(
    space: SearchSpace, pairs: Iterable[tuple[Candidate, Estimate]], devices: int
) -> list[Choice]:
    """Return the choices among some candidates, the best first.

    Args:
        pairs: the candidates with their estimates.
        devices: how many the job has.
    """
    groups: dict[tuple[str, ...], list[tuple[Candidate, Estimate]]] = {}
    for candidate, estimate in pairs:
        key = choice_key(candidate, space, devices)
        groups.setdefault(key, []).append((candidate, estimate))
    default = space.default()
    folded = [_choice(group, default, devices) for group in groups.values()]
    return sorted(folded, key=lambda choice: order(choice.candidate, choice.estimate, devices))


def choice_key(candidate: Candidate, space: SearchSpace, devices: int) -> tuple[str, ...]:
    """Return the key of a candidate's choice: candidates with one key are one choice."""
    names = [*_ALWAYS, *_OF_VLLM]
    names += [knob.name for knob in space.free_knobs if knob.kind == "recipe"]
    return (
        engine_name(sharding_of(candidate.values, devices)),
        *(value_label(candidate.knobs.get(name)) for name in dict.fromkeys(names)),
    )


def _choice(
    group: Sequence[tuple[Candidate, Estimate]], default: Candidate, devices: int
) -> Choice:
    """Return the choice of a group: among equally fast ones, the candidate whose costs are all
    known, then one that was traced as it is, then the one with the fewest settings that are not the
    stack's own, then the leanest."""

    def simplicity(pair: tuple[Candidate, Estimate]) -> tuple[bool, bool, int, int]:
        candidate, estimate = pair
        changes = len(candidate.differences(default))
        return bool(estimate.left_out), not estimate.traced, changes, estimate.peak_memory_bytes

    def place(pair: tuple[Candidate, Estimate]) -> Place:
        return order(*pair, devices)

    candidate, estimate = min(group, key=place)
    enough = (1 - AS_FAST) * (estimate.tokens_per_s or 0.0)
    if not estimate.fits:
        candidate, estimate = min(group, key=leanness)
    elif enough:
        best = place((candidate, estimate))[:2]
        equally_good = [pair for pair in group if place(pair)[:2] == best]
        near = [pair for pair in equally_good if (pair[1].tokens_per_s or 0.0) >= enough]
        candidate, estimate = min(near, key=simplicity)
    unsafe = max(
        (pair for pair in group if not is_safe(pair[1]) and pair[1].tokens_per_s),
        key=lambda pair: pair[1].tokens_per_s or 0.0,
        default=None,
    )
    return Choice(candidate=candidate, estimate=estimate, folded=len(group), unsafe=unsafe)


def shortened(folded: Sequence[Choice], most: int, devices: int) -> list[Choice]:
    """Return at most `most` of the best choices, the best of each sharding among them."""
    best_by_sharding: dict[str, Choice] = {}
    for choice in folded:
        sharding = engine_name(sharding_of(choice.candidate.values, devices))
        best_by_sharding.setdefault(sharding, choice)
    kept = list(best_by_sharding.values())[:most]
    rest = [choice for choice in folded if choice not in kept]
    chosen = {id(choice) for choice in [*kept, *rest[: most - len(kept)]]}
    return [choice for choice in folded if id(choice) in chosen]


def differing(candidate: Candidate, default: Candidate, space: SearchSpace) -> dict[str, KnobValue]:
    """Return the free knobs in which a candidate differs from the stack's defaults."""
    free = {knob.name for knob in space.free_knobs}
    return {name: value for name, value in candidate.differences(default).items() if name in free}
