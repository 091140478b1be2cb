"""The values of knobs that follow from the job, by the words that search spaces have for them.
Pure."""

import itertools
from collections.abc import Mapping
from typing import Any

from autotune.errors import Problem, UserError
from autotune.facts import Facts
from autotune.job.job import KnobValue
from autotune.space.batch import generation_batches, micro_batches, quarters
from autotune.space.job_shape import JobShape
from autotune.space.knobs import COMPLETION, GENERATION_BATCH, TENSOR_PARALLEL, VLLM_SHARE
from autotune.space.sharding.buckets import and_larger, as_transformers
from autotune.space.value_words import (
    AND_LARGER,
    AS_NEEDED,
    AS_TRANSFORMERS,
    BY_LENGTH,
    DIVISORS,
    GROWING,
    JOB_BATCH,
    JOB_MAX_LENGTH,
    ONE_EACH,
    QUARTERS,
    SIZES,
    WHOLE_GROUPS,
)
from autotune.space.vllm.colocated import MODE, SERVER, TRL_SHARE, needed_share
from autotune.space.vllm.server import searched_sizes, server_share

Bound = Mapping[str, tuple[KnobValue, ...]]
"""The values of the knobs that stand above, by name."""


def derived_values(name: str, word: Any, shape: JobShape, facts: Facts, bound_values: Bound) -> Any:
    """Return the values that a word stands for, of the knob `name`; what is no word stands for
    itself."""
    if word == DIVISORS:
        pairs = itertools.product(shape.global_batches, shape.process_counts)
        return sorted({micro for pair in pairs for micro in micro_batches(*pair)})
    if word == WHOLE_GROUPS:
        generation_batch_sizes = {n for s in shape.global_batches for n in generation_batches(s, 1)}
        return sorted(generation_batch_sizes, reverse=True)
    if word == QUARTERS:
        pairs = itertools.product(shape.global_batches, shape.process_counts)
        parts = {batch // count for batch, count in pairs}
        return sorted({n for part in parts if part for n in quarters(part)}, reverse=True)
    if word == JOB_MAX_LENGTH:
        return [shape.job.max_length]
    if word == JOB_BATCH:
        return [shape.job.global_batch_size]
    if word == ONE_EACH:
        return list(shape.process_counts)
    if word == BY_LENGTH:
        return ["random", "group_by_length"] if facts.data.ragged else ["random"]
    if word == GROWING:
        return _segments(facts)
    if word == SIZES:
        return searched_sizes(shape, facts)
    if word == AS_NEEDED and SERVER in bound_values.get(MODE, ()):
        return [server_share(shape.job, facts)]
    if word == AS_NEEDED:
        return _shares(shape, facts, bound_values)
    if word == AS_TRANSFORMERS:
        return [as_transformers(name, facts.model.hidden_size)]
    if word == AND_LARGER:
        return and_larger(name, facts.model.hidden_size)
    return word


def _segments(facts: Facts) -> list[bool]:
    """Return whether the allocator's segments may grow: where torch is known to have that. Where
    rows differ in length they do, as fixed ones keep more with each larger micro-batch."""
    if facts.device.kind != "cuda" or facts.device.maker != "NVIDIA":
        return [False]
    return [True] if facts.data.ragged else [False, True]


def _shares(shape: JobShape, facts: Facts, bound_values: Bound) -> list[float]:
    for name in (GENERATION_BATCH, COMPLETION):
        if name not in bound_values:
            what = f"`{VLLM_SHARE}` must stand below `{name}`, from which it follows"
            raise UserError(Problem(where="search_space", what=what))
    shares = {
        needed_share(shape.job, facts, max(generation_batch // processes, 1), length, size)
        for processes in shape.process_counts
        for generation_batch in bound_values[GENERATION_BATCH]
        for length in bound_values[COMPLETION]
        for size in bound_values.get(TENSOR_PARALLEL, (1,))
        if isinstance(generation_batch, int) and isinstance(length, int) and isinstance(size, int)
    }
    return sorted({TRL_SHARE if share is None else share for share in shares})
