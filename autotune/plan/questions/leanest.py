"""The candidates of a space that take least memory, and the knobs that decide about it. Pure."""

from collections.abc import Sequence

from autotune.space.bind import SearchSpace
from autotune.space.knobs import Candidate
from autotune.space.memory_order import expected_leanness
from autotune.space.sharding.sharding import sharding_of

LITTLE_TO_MEMORY = (
    *("attn_implementation", "optim", "dataloader_num_workers", "expandable_segments"),
    *("torch_compile", "train_sampling_strategy", "loss_type", "padding_free"),
    "use_liger_kernel",
)
"""Knobs that keep the leanest candidate's values while a way out is looked for."""


def leanest(space: SearchSpace) -> Candidate:
    """Return the candidate that should take least memory."""
    return min(space.candidates, key=expected_leanness)


def decisive(space: SearchSpace) -> list[Candidate]:
    """Return the leanest candidate that offloads no more than it must, and those that differ from
    it only in micro-batch, checkpointing and other things that decide about memory. All have its
    sharding: each sharding would be a trace of its own."""
    kept = [one for one in space.candidates if not offloads(one)] or list(space.candidates)
    lean = min(kept, key=expected_leanness)
    sharding = sharding_of(lean.values, 2)
    comparable = [
        one
        for one in kept
        if all(one.values.get(name) == lean.values.get(name) for name in LITTLE_TO_MEMORY)
        and sharding_of(one.values, 2) == sharding
    ]
    checkpointed = [
        one for one in comparable if one.values.get("gradient_checkpointing") is not False
    ]
    return checkpointed if checkpointed and sharding.zero_stage else comparable


def leanest_of_each_kind(ordered: Sequence[Candidate]) -> list[Candidate]:
    """Return the first of each micro-batch with and without checkpointing, among candidates ordered
    with the leanest first."""
    first_by_kind: dict[object, Candidate] = {}
    for candidate in ordered:
        kind = candidate.micro_batch, candidate.values.get("gradient_checkpointing")
        first_by_kind.setdefault(kind, candidate)
    return list(first_by_kind.values())


def offloads(candidate: Candidate) -> bool:
    """True if a candidate keeps a part of the training on the host."""
    return sharding_of(candidate.values, 2).offloads
