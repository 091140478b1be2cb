"""Words that stand for values which follow from the job (`derived.py`), and which knob may have
which."""

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
    TENSOR_PARALLEL,
    VLLM_SHARE,
)

DIVISORS = "divisors of the global batch"
JOB_MAX_LENGTH = "the job's max_length"
JOB_BATCH = "the job's global_batch_size"
WHOLE_GROUPS = "whole groups that divide the global batch"
QUARTERS = "a device's part of the global batch, and a quarter of it"
AS_NEEDED = "what the completions need"
ONE_EACH = "one for each device"
SIZES = "sizes among which vLLM can divide the model"
WORDS = {
    MICRO_BATCH: DIVISORS,
    "max_length": JOB_MAX_LENGTH,
    GLOBAL_BATCH: JOB_BATCH,
    GENERATION_BATCH: WHOLE_GROUPS,
    ROLLOUT_CHUNK: QUARTERS,
    VLLM_SHARE: AS_NEEDED,
    NUM_PROCESSES: ONE_EACH,
    TENSOR_PARALLEL: SIZES,
}
COUNTS = (
    *(MICRO_BATCH, "max_length", GENERATION_BATCH, GROUP, COMPLETION),
    *(ROLLOUT_CHUNK, MINI_BATCHES, RESPONSE, NUM_PROCESSES, TENSOR_PARALLEL),
)
"""Knobs that are whole numbers above 0."""
