"""What a search space may write in place of values, where these follow from the job: words, and
which knobs have them. Plain data."""

from autotune.space.knobs import (
    COMPLETION,
    GENERATION_BATCH,
    GLOBAL_BATCH,
    GROUP,
    MICRO_BATCH,
    MINI_BATCHES,
    NUM_PROCESSES,
    RESPONSE,
    ROLLOUT_CHUNK,
    SAMPLING,
    SEGMENTS,
    TENSOR_PARALLEL,
    VLLM_SHARE,
)
from autotune.space.sharding.sharding import BUCKET_SIZE, PERSISTENCE, PREFETCHED

DIVISORS = "divisors of the global batch"
JOB_MAX_LENGTH = "the job's max_length"
JOB_BATCH = "the job's global_batch_size"
WHOLE_GROUPS = "whole groups that divide the global batch"
QUARTERS = "a device's part of the global batch, and a quarter of it"
AS_NEEDED = "what the completions need"
ONE_EACH = "one for each device"
SIZES = "sizes among which vLLM can divide the model"
AS_TRANSFORMERS = "what transformers fills in"
AND_LARGER = "what transformers fills in, and larger"
BY_LENGTH = "random, and group_by_length where rows differ in length"
GROWING = "growing where rows differ in length"
_BUCKETS = (AS_TRANSFORMERS, AND_LARGER)
WORDS: dict[str, tuple[str, ...]] = {
    MICRO_BATCH: (DIVISORS,),
    "max_length": (JOB_MAX_LENGTH,),
    SAMPLING: (BY_LENGTH,),
    SEGMENTS: (GROWING,),
    GLOBAL_BATCH: (JOB_BATCH,),
    GENERATION_BATCH: (WHOLE_GROUPS,),
    ROLLOUT_CHUNK: (QUARTERS,),
    VLLM_SHARE: (AS_NEEDED,),
    NUM_PROCESSES: (ONE_EACH,),
    TENSOR_PARALLEL: (SIZES,),
    BUCKET_SIZE: _BUCKETS,
    PREFETCHED: _BUCKETS,
    PERSISTENCE: _BUCKETS,
}
"""The words that the values of a knob may be."""
COUNTS = (
    *(MICRO_BATCH, "max_length", GENERATION_BATCH, GROUP, COMPLETION),
    *(ROLLOUT_CHUNK, MINI_BATCHES, RESPONSE, NUM_PROCESSES, TENSOR_PARALLEL, BUCKET_SIZE),
)
"""Knobs that are whole numbers above 0."""
COUNTS_FROM_ZERO = (PREFETCHED, PERSISTENCE)
"""Knobs that are whole numbers, 0 among them."""


def counts(name: str, value: object) -> bool:
    """True if a value is a whole number, as large as the knob of that name needs."""
    minimum = 0 if name in COUNTS_FROM_ZERO else 1
    return isinstance(value, int) and not isinstance(value, bool) and value >= minimum
